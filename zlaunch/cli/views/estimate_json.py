"""An estimate as one JSON object: everything that is known, in bytes and seconds."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from zlaunch.cli.views.launch_json import findings_json
from zlaunch.errors import Finding
from zlaunch.estimate.candidates import Candidate
from zlaunch.estimate.effects import ChangeEffect
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.search import NothingFits, SearchResult
from zlaunch.estimate.strategies import StrategyTable

Json = dict[str, object]


def of_strategies(query: EstimateQuery, table: StrategyTable) -> Json:
    """Describe a job under every strategy, and which one to take."""
    rows: list[Json] = []
    for strategy, result in table.rows:
        row: Json = {"options": str(strategy.options), "stage": strategy.stage, "offload": strategy.offload}
        if isinstance(result, Rejected):
            row |= {"fit": "refused", "findings": findings_json(result.findings)}
        else:
            row |= _estimate(result, with_curve=False)
        rows.append(row)
    chosen = None if table.chosen is None else str(table.chosen[0].options)
    return {**_job_members(query), "remarks": findings_json(query.remarks), "ladder": rows, "chosen": chosen}


def of_search(result: SearchResult | NothingFits, query: EstimateQuery) -> Json:
    """Describe what a search chose, with its ds_config; null if nothing fits, beside the closest."""
    if isinstance(result, NothingFits):
        closest = _candidate(*result.closest)
        return {
            **_job_members(query),
            "fit": result.fit,
            "chosen": None,
            "closest": closest,
            "ds_config": None,
        }
    return {
        **_job_members(query),
        "fit": result.estimate.fit,
        "chosen": _candidate(result.candidate, result.estimate),
        "ds_config": json.loads(result.ds_config()),
    }


def _candidate(candidate: Candidate, estimate: Estimate) -> Json:
    return {
        "options": str(candidate.options),
        "stage": candidate.strategy.stage,
        "offload": candidate.strategy.offload,
        "micro_batch": candidate.micro_batch,
        "grad_accum": candidate.accumulation,
        "activation_checkpointing": candidate.checkpointing,
        "estimate": _estimate(estimate, with_curve=False),
    }


def of_one(
    estimate: Estimate, effects: Sequence[ChangeEffect] | None, remarks_on_program: Sequence[Finding] = ()
) -> Json:
    """Describe one job and what each change to it would do; null if none was tried."""
    changes = None if effects is None else [_effect(effect) for effect in effects]
    remarks = findings_json([*remarks_on_program, *estimate.query.remarks, *estimate.remarks])
    return {**_job_members(estimate.query), **_estimate(estimate), "remarks": remarks, "changes": changes}


def _effect(effect: ChangeEffect) -> Json:
    figures = {
        "gpu": effect.gpu,
        "host": effect.host,
        "pace": effect.pace,
        "fit": effect.fit,
        "parts": effect.parts,
    }
    return {"words": str(effect.options), **figures}


def _job_members(query: EstimateQuery) -> Json:
    training, cluster = query.training, query.cluster
    gpu = cluster.gpu and {
        "name": cluster.gpu.name,
        "total_bytes": cluster.gpu.total_bytes,
        "usable_bytes": cluster.gpu.usable_bytes(cluster.world_size),
    }
    return {
        "model": query.model.file,
        "model_is_bundled": query.model.is_bundled,
        "sequence": {"tokens": training.seq_len.value, "source": str(training.seq_len.source)},
        "attention": training.attention,
        "activation_checkpointing": training.activation_checkpointing,
        "lora": training.lora,
        "frozen": training.frozen,
        "liger": training.liger,
        "four_bits": training.four_bits,
        "load_dtype": training.load_dtype,
        "hosts": cluster.num_hosts,
        "ranks_per_host": cluster.ranks_per_host,
        "host_bytes": cluster.host_bytes,
        "gpu": gpu,
    }


def _estimate(estimate: Estimate, *, with_curve: bool = True) -> Json:
    forecast = asdict(estimate.forecast)
    phases = list(forecast["phases"])
    if forecast["resume"] and forecast["resume"]["phase"]:
        phases.append(forecast["resume"]["phase"])
    for phase in phases:
        del phase["parts"]  # of each phase, for pictures; `parts` has those at the peak
    if not with_curve:
        del forecast["curve"]
    return {
        "fit": estimate.fit,
        "reasons": estimate.verdict.reasons,
        "need": estimate.need,
        "step_seconds": estimate.seconds,
        "speed": estimate.speed,
        "ds_config": estimate.workload.ds_config,
        "forecast": forecast,
        "warnings": findings_json(estimate.resolved.warnings),
        "remarks": findings_json(estimate.remarks),
    }
