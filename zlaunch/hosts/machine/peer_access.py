"""`zlaunch.hosts.machine.peer_access`: which GPUs can read the memory of which others, asked of torch.

Runs in the Python of the ranks, in a process of its own: it makes a CUDA context.
"""

from zlaunch.json_lines import answer


def main() -> None:
    """Print a matrix of booleans: row reads column."""
    import torch

    numbers = range(torch.cuda.device_count())
    access = [
        [column == row or torch.cuda.can_device_access_peer(row, column) for column in numbers]
        for row in numbers
    ]
    answer(access)


if __name__ == "__main__":
    main()
