"""Train with DDP in two processes that share one device.

    python -m scripts.checks.two_processes model=gap_net trainer.max_steps=20 hydra.run.dir=DIR

The options are those of cassi-train. The processes communicate by gloo, because NCCL refuses two
processes on one device. Lightning is told that each process is a node with one device. One line is
printed per process, and the exit status is 1 if a process failed.
"""

import os
import socket
import subprocess
import sys

TRAIN = """
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
StrategyRegistry.register("gloo", DDPStrategy, "DDP on gloo", process_group_backend="gloo")
from cassi.apps.train import main
main()
"""
OPTIONS = ("trainer.num_nodes=2", "trainer.devices=1", "trainer.strategy=gloo")


def main(options: list[str]) -> int:
    """Start both processes, wait for them, and return the exit status."""
    # The system chooses a free port for port 0.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
    command = [sys.executable, "-c", TRAIN, *options, *OPTIONS]
    processes = [
        subprocess.Popen(command, env=os.environ | address | {"NODE_RANK": rank, "RANK": rank})
        for rank in "01"
    ]
    results = [process.wait() for process in processes]
    for rank, result in enumerate(results):
        print(f"process {rank}: {f'status {result}' if result else 'ok'}")
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
