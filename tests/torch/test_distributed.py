# SPDX-License-Identifier: Apache-2.0
"""Two processes under DistributedDataParallel train what one process trains on both their batches."""

from __future__ import annotations

import socket
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn

import wia_quant.torch as wia

STEPS = 4


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 6, generator=generator) for _ in range(STEPS)]


def prepared() -> nn.Module:
    torch.manual_seed(0)
    return wia.prepare_qat(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))


def run(model: nn.Module, data: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x in data:
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def work(rank: int, port: int, folder: str) -> None:
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    model = prepared()
    half = slice(0, 4) if rank == 0 else slice(4, 8)
    run(nn.parallel.DistributedDataParallel(model), [x[half] for x in batches()])
    torch.save(model.state_dict(), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (port, str(tmp_path)), nprocs=2)
    alone = prepared()
    run(alone, batches())
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    for key, value in alone.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(first[key], second[key]), key
            # Sums of gradients in another order: float32 rounding, STEPS times.
            torch.testing.assert_close(first[key], value, rtol=1e-4, atol=1e-6)
