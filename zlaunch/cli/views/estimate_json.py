"""An estimate as one JSON object: everything that is known, in bytes and seconds."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zlaunch.errors import Finding
from zlaunch.estimate.changes import ChangeEffect
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.strategies import STRATEGIES


def of_ladder(
    question: EstimateQuery, site: Cluster, answers: Sequence[Estimate | Rejected], chosen: int | None
) -> dict[str, Any]:
    """Describe every rung, and which one to take."""
    rungs = []
    for rung, answer in zip(STRATEGIES, answers, strict=True):
        told = _refusal(answer) if isinstance(answer, Rejected) else _answer(answer)
        told.get("forecast", {}).pop("curve", None)
        rungs.append({"options": rung.words, "stage": rung.stage, "offload": asdict(rung.offload), **told})
    return {
        **_asked(question, site),
        "ladder": rungs,
        "chosen": None if chosen is None else STRATEGIES[chosen].words,
    }


def of_one(answer: Estimate, site: Cluster, effects: Sequence[ChangeEffect] | None) -> dict[str, Any]:
    """Describe one job and what each change to it would do; null if none was tried."""
    changes = None if effects is None else [{**asdict(one), "fit": one.fit.value} for one in effects]
    asked, told = _asked(answer.question, site), _answer(answer)
    return {**asked, **told, "remarks": [*asked["remarks"], *told["remarks"]], "changes": changes}


def _asked(question: EstimateQuery, site: Cluster) -> dict[str, Any]:
    training, gpu = question.training, site.gpu
    return {
        "model": question.model.source,
        "sequence": {"tokens": training.seq_len.value, "source": str(training.seq_len.source)},
        "attention": training.attention,
        "activation_checkpointing": training.activation_checkpointing,
        "lora": None if training.lora is None else asdict(training.lora),
        "load_dtype": training.load_dtype,
        "hosts": site.num_hosts,
        "ranks_per_host": site.ranks_per_host,
        "host_bytes": site.host_bytes,
        "gpu": None
        if gpu is None
        else {
            "name": gpu.name,
            "total_bytes": gpu.total_bytes,
            "usable_bytes": gpu.usable_bytes(site.world_size),
        },
        "remarks": [_finding(one) for one in question.remarks],
    }


def _refusal(refusal: Rejected) -> dict[str, Any]:
    return {"fit": "refused", "findings": [_finding(one) for one in refusal.findings]}


def _answer(answer: Estimate) -> dict[str, Any]:
    return {
        "fit": answer.verdict.fit.value,
        "reasons": list(answer.verdict.reasons),
        "need": asdict(answer.need),
        "step_seconds": answer.seconds,
        "speed": None if answer.speed is None else asdict(answer.speed),
        "ds_config": answer.workload.ds_config,
        "forecast": asdict(answer.forecast),
        "warnings": [_finding(one) for one in answer.settled.warnings],
        "remarks": [_finding(one) for one in answer.remarks],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "path": finding.where,
        "place": None if finding.place is None else str(finding.place),
        "message": finding.message,
        "hint": finding.hint,
    }
