"""Plans as JSON: everything that a dry run shows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from zlaunch.cli.views.dump import to_json
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.errors import Finding
from zlaunch.launch.plan import LaunchPlan

if TYPE_CHECKING:  # often nothing is estimated
    from zlaunch.estimate.query import Estimate

Json = dict[str, object]


def plan_json(plan: LaunchPlan, estimate: "Estimate | None") -> str:
    """Write a plan; values of secret variables are left out."""
    variables = {name: {"value": one.shown(name), "why": one.why} for name, one in plan.environment.items()}
    members: Json = {
        "run_directory": str(plan.layout.root),
        "launcher": plan.launcher,
        "accelerator": plan.accelerator,
        "python": plan.python.executable,
        "module": plan.module,
        "script": list(plan.script),
        "argv": list(plan.argv),
        "precision": plan.precision,
        "within": plan.started_by,
        "ranks": [asdict(slot) for slot in plan.topology.slots()],
        "micro_batch": plan.values[MICRO],
        "grad_accum": plan.values[ACCUMULATION],
        "train_batch_size": plan.values[TOTAL],
        "ds_config": plan.values.config(),
        "sources": plan.values.sources(),
        "left": dict(plan.left),
        "environment": variables,
        "native_ops": [op.name for op in plan.ops],
        "resume": None if plan.resume is None else str(plan.resume.resumption.saved.checkpoint.folder),
        "time_limit": None if plan.limit is None else asdict(plan.limit),
        "warnings": findings_json(plan.warnings),
        "estimate": None if estimate is None else {"fit": estimate.fit.value, **asdict(estimate.need)},
    }
    return to_json(members)


def findings_json(findings: Sequence[Finding]) -> list[Json]:
    """Write findings as all commands about jobs do."""
    return [
        {
            "code": finding.code,
            "severity": finding.severity.value,
            "path": finding.where,
            "place": None if finding.place is None else str(finding.place),
            "message": finding.message,
            "hint": finding.hint,
        }
        for finding in findings
    ]
