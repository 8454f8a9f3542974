"""Plans as JSON: everything that a dry run shows."""

from collections.abc import Sequence
from dataclasses import asdict

from zlaunch.cli.views.dump import to_json
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.errors import Finding
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.plan_record import plan_record

Json = dict[str, object]


def plan_json(plan: LaunchPlan) -> str:
    """Write a plan: its record, the ds_config, and the sources of what is in them.

    Values of secret variables are left out.
    """
    estimate, position = plan.facts.estimate, plan.data_position
    members: Json = {
        **plan_record(plan),
        "argv": list(plan.argv),
        "within": plan.facts.surroundings.source,
        # As in the ds_config: what the Trainer fills in is "auto" here, and unknown in the record.
        "micro_batch": plan.values[MICRO],
        "grad_accum": plan.values[ACCUMULATION],
        "train_batch_size": plan.values[TOTAL],
        "ds_config": plan.values.config(),
        "sources": plan.values.sources(),
        "left": dict(plan.left),
        "args": [{"words": words, "source": source} for words, source in plan.args.sources()],
        "environment": {
            name: {"value": variable.shown(name), "why": variable.why}
            for name, variable in plan.environment.items()
        },
        "resume": None if position is None else position.resumption.saved.checkpoint.folder,
        "time_limit": plan.limit,
        "warnings": findings_json(plan.warnings),
        "estimate": None if estimate is None else {"fit": estimate.fit, **asdict(estimate.need)},
    }
    return to_json(members)


def findings_json(findings: Sequence[Finding]) -> list[Json]:
    """Write findings as all commands about jobs do."""
    return [
        {
            "code": finding.code,
            "severity": finding.label,
            "path": finding.where,
            "place": finding.place and str(finding.place),
            "message": finding.message,
            "hint": finding.hint,
        }
        for finding in findings
    ]
