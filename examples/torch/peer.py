#!/usr/bin/env python3
"""Tensor parallel ranks of PyTorch: all-reduce, residual and RMSNorm in one call of libfastnorm,
beside NCCL's all-reduce and the fused norm. PyTorch's symmetric memory is not needed.

    FASTNORM_LIBRARY=build/src/libfastnorm.so.1 torchrun --nproc-per-node 2 examples/torch/peer.py

A process for each GPU. Ranks tell each other where their buffers are by an all_gather of blobs.
"""

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from fastnorm import abi  # noqa: E402


class Peer:
    """One rank's end; PyTorch's process group brings the blobs to all."""

    def __init__(self, device, columns):
        self.context = abi.Context(abi.Library(abi.library_path()), abi.CUDA, device.index)
        self.peer = abi.Peer(
            self.context,
            rank=dist.get_rank(),
            ranks=dist.get_world_size(),
            dtype=abi.BF16,
            max_columns=columns,
        )
        blobs = [None] * dist.get_world_size()
        dist.all_gather_object(blobs, self.peer.blob())
        self.peer.connect(blobs)

    def close(self):
        torch.cuda.synchronize()
        dist.barrier()  # no rank uses another one's buffer any more
        self.peer.close()
        self.context.close()

    @staticmethod
    def view(t):
        strides = [stride * t.element_size() for stride in t.stride()]
        return SimpleNamespace(
            address=t.data_ptr(),
            dtype=abi.BF16,
            shape=t.shape,
            strides=strides,
            itemsize=t.element_size(),
        )

    def add_rms_norm(self, x, residual, weight, y, eps=1e-6):
        """y = norm(sum of the ranks' x + residual), which residual becomes. Rows are aligned."""
        tensors = {"x": x, "residual": residual, "residual_out": residual, "weight": weight, "y": y}
        self.context.peer_allreduce_norm(
            self.peer,
            torch.cuda.current_stream().cuda_stream,
            eps=eps,
            flags=abi.PDL_WAIT | abi.PDL_TRIGGER,
            **{name: self.view(t) for name, t in tensors.items()},
        ).run()


def microseconds(step, calls=50, samples=9):
    """The median of a graph's call, of the slowest rank."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            step()
    times = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) * 1e3 / calls], device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(slowest.item())
    return sorted(times)[samples // 2]


def by_symmetric_memory(fn, x, residual, weight):
    """PyTorch's all-reduces without multicast, each before the fused norm."""
    from torch.distributed import _symmetric_memory as symmetric

    group = dist.group.WORLD.group_name
    shared = symmetric.empty(x.shape, dtype=x.dtype, device=x.device).fill_(0)
    symmetric.rendezvous(shared, group)

    def one_shot():
        total = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group)
        fn.fused_add_rms_norm(total, residual, weight, 1e-6)

    def two_shot():
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group)
        fn.fused_add_rms_norm(shared, residual, weight, 1e-6)

    return {"one-shot and a fused norm": one_shot, "two-shot and a fused norm": two_shot}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128, 1024])
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--symmetric-memory", action="store_true",
                        help="also time PyTorch's one- and two-shot all-reduce and the fused norm")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("peer.py needs GPUs: required: torchrun with a process for each")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    import fastnorm.torch as fn

    peer = Peer(device, options.columns)
    for rows in options.rows:
        generator = torch.Generator(device).manual_seed(rank)
        shape = (rows, options.columns)
        x = torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)
        residual = torch.ones(shape, device=device, dtype=torch.bfloat16)
        weight = torch.ones(options.columns, device=device, dtype=torch.bfloat16)
        parts = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(parts, x)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()  # rank order, f32
        expected, expected_sum = fn.add_rms_norm(total.bfloat16(), residual, weight, 1e-6)
        y, own = torch.empty_like(x), residual.clone()
        peer.add_rms_norm(x, own, weight, y)
        torch.cuda.synchronize()
        if not (torch.equal(y, expected) and torch.equal(own, expected_sum)):
            sys.exit(f"rank {rank}: {rows} rows differ from a sum in rank order and one norm")

        work = torch.zeros_like(x)  # stays what it is

        def by_nccl():
            dist.all_reduce(work)
            fn.fused_add_rms_norm(work, own, weight, 1e-6)

        others = {"NCCL and a fused norm": by_nccl}
        if options.symmetric_memory:
            others |= by_symmetric_memory(fn, x, own, weight)
        fused = microseconds(lambda: peer.add_rms_norm(x, own, weight, y))
        times = {name: microseconds(call) for name, call in others.items()}
        if rank == 0:
            text = "; ".join(f"{name} {us:.2f} us" for name, us in times.items())
            print(f"{rows}x{options.columns}: {fused:.2f} us; {text}", flush=True)
    peer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
