"""A configuration, searched for, explained in five lines, and written."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from zlaunch import console
from zlaunch.cli.views.estimate_text import asked, origin, unchecked_host
from zlaunch.cli.views.strategies import refused_lines
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.compose import compose, to_json
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.errors import ExitStatus, Refused, Unavailable, WrongUsage
from zlaunch.estimate.candidates import Candidate
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, is_fit
from zlaunch.estimate.search import NothingFits, SearchResult, search
from zlaunch.estimate.strategies import STRATEGIES, apply_strategy, is_as_fast
from zlaunch.job.source import Source
from zlaunch.units import brief, count, gib, memory, plural

MOST_MISSING: Final = 3
"""Configurations that are named as too large, or perhaps too large."""


def report(
    question: EstimateQuery, site: Cluster, global_batch: int | None, output: Path | None
) -> ExitStatus:
    """Search, explain what was found, write it, and say what the program exits with."""
    from zlaunch.files import check_new

    if site.gpu is None:
        raise Unavailable("no GPU is here to plan for", "name those you mean: `--on 8xH100-80GB`")
    if output is not None:
        check_new(output)
    found = _search(question, site, _per_rank(question, site, global_batch))
    if isinstance(found, NothingFits):
        _show_nothing(found, question)
        return found.fit.status
    for line in console.table(
        [*asked(question, site, found.answer.forecast), *_told(found, site)], indent=""
    ):
        console.data(line)
    console.say_findings(found.answer.findings)
    _write(found, output)
    return ExitStatus.OK


def _search(question: EstimateQuery, site: Cluster, per_rank: int) -> SearchResult | NothingFits:
    from zlaunch.estimate.run import Appraiser, rehearser

    progress = console.ProgressLine()

    def show(done: int, total: int) -> None:
        if done < total:
            progress.show("rehearsing what looks fastest", f"({done} of {total} done)")

    try:
        with rehearser() as rehearse:
            return search(question, per_rank, Appraiser(site, rehearse, show))
    except Unavailable:
        _explain_unavailable(question)
        raise
    finally:
        progress.clear()


def _explain_unavailable(question: EstimateQuery) -> None:
    """Raise Unavailable, with what can be asked instead, of a model that the closed form does not know."""
    from zlaunch.estimate.query import check_countable
    from zlaunch.job.transformer import read_transformer

    try:
        read_transformer(question.model.value)
    except Refused:
        check_countable(question, apply_strategy(question, STRATEGIES[0]).settled())
        name = shlex.quote(question.model.source.removesuffix("/config.json"))
        raise Unavailable(
            "`zlaunch plan` cannot order configurations of this model: only a rehearsal tells what it takes",
            f"`zlaunch estimate {name}` may tell what it takes at each stage and offload",
        ) from None


def _show_nothing(found: NothingFits, question: EstimateQuery) -> None:
    """Say that nothing surely fits, what came closest, what cannot work, and what was left out."""
    candidate, answer = found.closest
    close = "too close to tell, even" if found.fit is Fit.TIGHT else "nothing fits, not even"
    for line in (
        *console.paragraph(
            f"{close} with a micro-batch of 1 and activation checkpointing; {_looked_at(found)}"
        ),
        *console.paragraph(f"closest is `{candidate.words}`: {'; '.join(answer.verdict.reasons)}"),
        *refused_lines(found.refused),
    ):
        console.say(line)
    console.say_findings(answer.findings)
    if question.job.nvme_dir is None:
        console.say("hint: `--nvme DIR` lets it offload to a drive, too")


def _looked_at(found: NothingFits) -> str:
    """Count what was rehearsed, and what the closed form alone answered."""
    methods = [answer.forecast.method for _, answer in found.smallest]
    counts = {"rehearsed": methods.count("rehearsal"), "by the closed form": methods.count("closed form")}
    told = ", ".join(f"{number} {how}" for how, number in counts.items() if number)
    return f"combinations of stage and offload tried: {told}"


def _per_rank(question: EstimateQuery, site: Cluster, global_batch: int | None) -> int:
    """Share the global batch out; raise WrongUsage if it cannot be."""
    args = question.given.args
    if global_batch is None:
        return int(args["per_device_train_batch_size"].value) * int(args["gradient_accumulation_steps"].value)
    if global_batch % site.world_size:
        more = -(-global_batch // site.world_size) * site.world_size
        raise WrongUsage(
            f"`--global-batch {global_batch}` cannot be shared among {plural(site.world_size, 'rank')}",
            f"`--global-batch {more}` can",
        )
    return global_batch // site.world_size


def _told(found: SearchResult, site: Cluster) -> Iterator[tuple[str, str]]:
    """Explain a choice in five lines."""
    chosen, answer = found.candidate, found.answer
    yield "choice", f"`{chosen.words}`"
    total = chosen.micro_batch * chosen.accumulation * site.world_size
    equation = f"{chosen.micro_batch} per rank x {chosen.accumulation} accumulated"
    yield "batch", f"{total} = {equation} x {plural(site.world_size, 'rank')}"
    yield "memory", _memory(answer, site)
    yield "because", "; ".join(_reasons(found)) or "nothing else is as fast and fits"
    bucket = answer.settled.values[ZERO, "reduce_bucket_size"]
    if bucket is not None:
        yield "buckets", f"{count(bucket)} elements"
    if answer.seconds is not None:
        yield "step", f"about {brief(answer.seconds)}"
    yield "method", origin(answer.forecast)


def _memory(answer: Estimate, site: Cluster) -> str:
    need, gpu = answer.need, site.gpu
    assert gpu is not None, "the caller has one"
    phase = answer.forecast.peak_phase("gpu")
    text = f"{gib(need.process[1])} of {gib(gpu.total_bytes)} GiB on the GPU, fullest in {phase}"
    return f"{text}; {unchecked_host(answer, site) or f'{memory(need.host)} on each host'}"


def _reasons(found: SearchResult) -> Iterator[str]:
    """Say what would be as good but does not fit, rehearsed or by the closed form, and what is slower."""
    chosen, own = found.candidate, found.answer.seconds
    below = STRATEGIES[: STRATEGIES.index(chosen.rung)]
    misses = [
        (one, answer)
        for one, answer in found.tried
        if isinstance(answer, Estimate) and not is_fit(answer) and is_as_fast(answer.seconds or 0, own or 0)
    ]
    yield from _missing(_closest_by_rung(misses)[:MOST_MISSING], own)
    if out := [f"`{rung.words}`" for rung in below if rung in found.hopeless]:
        yield f"{', '.join(out)} cannot fit by the closed form"
    if found.other is not None and own:
        other, seconds = found.other
        if seconds > own:
            slower = "no faster" if is_as_fast(seconds, own) else f"{seconds / own - 1:.0%} slower"
            yield f"`{other.words}` would be {slower}"


def _missing(misses: Sequence[tuple[Candidate, Estimate]], own: float | None) -> Iterator[str]:
    """Gather what may not fit, and what does not, beside a job whose step takes so long."""
    for fit, words in ((Fit.TIGHT, "may not fit"), (Fit.NO, "too large")):
        these = [(one.words, answer.seconds) for one, answer in misses if answer.verdict.fit is fit]
        names = ", ".join(f"`{name}`" for name, _ in these)
        if not names:
            continue
        if own is None:
            yield f"{words}: {names}"
        else:
            is_faster = not any(seconds is None or is_as_fast(own, seconds) for _, seconds in these)
            yield f"{'faster' if is_faster else 'as fast or faster'}, but {words}: {names}"


def _closest_by_rung(misses: Sequence[tuple[Candidate, Estimate]]) -> list[tuple[Candidate, Estimate]]:
    """Keep of each rung what needs least."""
    least = sorted(misses, key=lambda one: one[1].need.reserved)
    return list({one[0].rung: one for one in reversed(least)}.values())[::-1]


def _write(found: SearchResult, output: Path | None) -> None:
    """Write the ds_config, with "auto" where the Trainer's arguments decide."""
    from zlaunch.files import write_new

    candidate = found.candidate
    values = compose(candidate.question.job, None)
    values = values.put(MICRO, candidate.micro_batch, Source.option("zlaunch plan"))
    values = values.put(ACCUMULATION, candidate.accumulation, Source.option("zlaunch plan"))
    text = to_json(values.config())
    argument = " -- --activation_checkpointing" if candidate.checkpointing else ""
    if output is None:
        console.say("`-o FILE` writes it as a ds_config")
        return
    write_new(output, text)
    console.say(f"wrote {output}; to train with it:")
    console.say(f"  zlaunch train SCRIPT --ds-config {shlex.quote(str(output))}{argument}")
