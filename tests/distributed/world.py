"""Worlds of gloo processes that stay up and run check after check, so that starting them is paid once."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import queue
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Long enough for a busy machine; a check that hangs ends here, and never later.
GROUP_TIMEOUT_S = 30
CHECK_TIMEOUT_S = 90


class World:
    """`size` processes in one process group on the loopback interface; rank 0 keeps a "tcp" store."""

    def __init__(
        self,
        size: int,
        folder: Path,
        timeout_s: float = GROUP_TIMEOUT_S,
        store: str = "file",
        interfaces: str = "lo",
    ) -> None:
        self.size = size
        meeting = f"file://{folder}/meeting" if store == "file" else f"tcp://127.0.0.1:{free_port()}"
        # A server that has the modules makes a world in a moment, where new interpreters take seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["regard.distributed", "regard.testing", "pytest"])
        self._orders = [context.Queue() for _ in range(size)]
        self._reports = context.Queue()
        self._processes = [
            context.Process(
                target=_serve,
                args=(rank, size, meeting, timeout_s, interfaces, self._orders[rank], self._reports),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in self._processes:
            process.start()

    def run(self, check: Callable[..., Any], *arguments: Any, dying: tuple[int, ...] = ()) -> list[Any]:
        """Call `check(rank, size, *arguments)` on every rank; what each returned, None for those that die.

        AssertionError with the tracebacks of all ranks that failed, or that did not report.
        """
        for orders in self._orders:
            orders.put((check, arguments))
        results: dict[int, Any] = dict.fromkeys(dying)
        faults: dict[int, str] = {}
        while len(results) + len(faults) < self.size:
            try:
                rank, result, fault = self._reports.get(timeout=CHECK_TIMEOUT_S)
            except queue.Empty:
                silent = set(range(self.size)) - set(results) - set(faults)
                faults |= dict.fromkeys(silent, "no report")
                break
            if fault is None:
                results[rank] = result
            else:
                faults[rank] = fault
        if faults:
            self.close()
        assert not faults, "\n".join(
            f"--- rank {rank} of {self.size}\n{fault}" for rank, fault in faults.items()
        )
        return [results[rank] for rank in range(self.size)]

    @property
    def alive(self) -> bool:
        """Whether further checks can be run."""
        return all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(10)


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def _serve(
    rank: int, size: int, meeting: str, timeout_s: float, interfaces: str, orders: Any, reports: Any
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interfaces
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=meeting,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    while True:
        check, arguments = orders.get()
        try:
            reports.put((rank, check(rank, size, *arguments), None))
        except BaseException:  # noqa: BLE001 (it is reported, whatever it is)
            reports.put((rank, None, traceback.format_exc()))
