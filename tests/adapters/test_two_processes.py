"""Two processes on loopback, as a cluster would be: each sample once, equal steps, both finish."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store

_TORCH = """
import json, sys
import torch, torch.distributed as dist, h5store
from torch.nn.parallel import DistributedDataParallel
rank, port = int(sys.argv[1]), sys.argv[2]
if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with h5store.Reader("x.h5") as reader:
        batches = reader.to_torch(batch_size=8, seed=int(sys.argv[3]) + rank * int(sys.argv[4]), rank=rank,
                                  world_size=2, num_workers=rank)
        seen, steps = [], []
        for epoch in range(2):
            ids = []
            for x, y in batches:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x)[:, 0], y.float()).backward()
                optimizer.step()
                ids += y.tolist()
            seen.append(ids)
            steps.append(len(batches))
    print(json.dumps({"seen": seen, "steps": steps, "weight": model.module.weight.tolist()}))
    dist.destroy_process_group()
"""

_TF = """
import json, os, sys
rank, ports = int(sys.argv[1]), sys.argv[2].split(",")
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [f"127.0.0.1:{p}" for p in ports]},
                                      "task": {"type": "worker", "index": rank}})
import tensorflow as tf, h5store
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(tf.zeros((2, 1)))
reader = h5store.Reader("x.h5")
batches = strategy.distribute_datasets_from_function(lambda context: reader.to_tf(
    batch_size=8, seed=int(sys.argv[3]), rank=context.input_pipeline_id, world_size=context.num_input_pipelines))

@tf.function
def step(x, y):
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, weight)[:, 0] - tf.cast(y, tf.float32)) ** 2)
        gradient = tape.gradient(loss, weight)
        gradient = tf.distribute.get_replica_context().all_reduce("mean", gradient)
        weight.assign_sub(1e-3 * gradient)
        return y
    return strategy.run(train, args=(x, y))

seen, steps = [], []
for epoch in range(2):
    ids, count = [], 0
    for x, y in batches:
        ids += [int(i) for part in strategy.experimental_local_results(step(x, y)) for i in part.numpy()]
        count += 1
    seen.append(ids)
    steps.append(count)
print(json.dumps({"seen": seen, "steps": steps, "weight": weight.numpy().tolist()}))
"""


def free_ports(count: int) -> list[str]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [str(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def run_both(folder: Path, code: str, where: str, *args: str) -> list[subprocess.CompletedProcess[str]]:
    script = folder / "rank.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(h5store.__file__).parents[1]),
                                                                os.environ.get("PYTHONPATH", "")])}
    running = [subprocess.Popen([sys.executable, str(script), str(rank), where, *args], cwd=folder, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    done = []
    try:
        for process in running:
            out, errors = process.communicate(timeout=200)
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, errors))
    finally:
        for process in running:
            process.kill()
            process.wait()
    return done


def check(done: list[subprocess.CompletedProcess[str]], n: int) -> None:
    told: list[dict[str, Any]] = []
    for one in done:
        assert one.returncode == 0, one.stderr[-3000:]
        told.append(json.loads(one.stdout.strip().splitlines()[-1]))
    assert told[0]["steps"] == told[1]["steps"]
    for epoch in range(2):
        assert sorted(told[0]["seen"][epoch] + told[1]["seen"][epoch]) == list(range(n))
    np.testing.assert_allclose(told[0]["weight"], told[1]["weight"], rtol=1e-6)


@pytest.fixture(params=[96, 101], ids=["even", "uneven"])
def n(request: pytest.FixtureRequest, tmp_path: Path) -> int:
    h5store.pack(tmp_path / "x.h5", features=np.ones((request.param, 2), "f4"), labels=np.arange(request.param),
                 chunk=4, progress=False)
    return int(request.param)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_torch_ddp_over_gloo(tmp_path: Path, n: int) -> None:
    pytest.importorskip("torch")
    check(run_both(tmp_path, _TORCH, free_ports(1)[0], "3", "0"), n)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_ranks_with_different_plans_are_told(tmp_path: Path, n: int) -> None:
    pytest.importorskip("torch")
    if n == 96:
        pytest.skip("the number of samples does not matter")
    for one in run_both(tmp_path, _TORCH, free_ports(1)[0], "3", "1"):
        assert one.returncode != 0 and "seed" in one.stderr and "rank 1" in one.stderr


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_multi_worker_mirrored_strategy(tmp_path: Path, n: int) -> None:
    pytest.importorskip("tensorflow")
    check(run_both(tmp_path, _TF, ",".join(free_ports(2)), "3"), n)
