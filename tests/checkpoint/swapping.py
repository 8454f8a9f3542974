"""Checkpoints as the engine leaves them with the optimizer on NVMe."""

from pathlib import Path


def put_on_nvme(folder: Path) -> None:
    """Move the numbers of a stage 3 optimizer to swap files, which DeepSpeed pads."""
    import torch

    for optim in folder.glob("*_optim_states.pt"):
        rank = int(optim.name.partition("rank_")[2].partition("_")[0])
        model = folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        state, described = torch.load(optim, weights_only=False), torch.load(model, weights_only=False)
        described["ds_config"]["zero_optimization"]["offload_optimizer"] = {"device": "nvme"}
        torch.save(described, model)
        inner = state["optimizer_state_dict"]
        drive = folder / "offloaded_tensors" / f"rank{rank:02}"
        drive.mkdir(parents=True)
        for number, group in enumerate(inner["fp32_flat_groups"]):
            swapped = torch.empty(0)
            swapped.ds_id = name = f"{9 - number}_{20 + number}"
            moments = inner["optimizer_state_dict"]["state"][number]
            for prefix, one in (
                ("", group),
                *((f"{key}-", moments[key]) for key in ("exp_avg", "exp_avg_sq")),
            ):
                numbers = one.detach().numpy().tobytes()
                (drive / f"{prefix}{name}.tensor.swp").write_bytes(numbers + bytes(-len(numbers) % 1024))
            inner["fp32_flat_groups"][number] = swapped
            moments |= {"exp_avg": torch.empty(0), "exp_avg_sq": torch.empty(0)}
        torch.save(state, optim)
