"""A link between two network namespaces with a rate and a delay of our own, where the kernel has no netem.

    python shaped_link.py FIRST SECOND MBIT DELAY_MS

Packets of one TUN device come out of the other after their time on the wire and the delay. Runs until killed;
prints "ready" once both devices are up, at 10.78.0.1 and 10.78.0.2.
"""

import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from contextlib import suppress

MTU = 8960
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def open_end(namespace: str, number: int) -> int:
    """A TUN device inside the namespace, and its file descriptor here."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"end{number}-{os.getpid()}"[:15]
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    other = 3 - number
    for words in (
        f"ip link set {name} netns {namespace}",
        f"ip -n {namespace} link set {name} name eth0 mtu {MTU} txqueuelen 10000",
        f"ip -n {namespace} address add 10.78.0.{number} peer 10.78.0.{other} dev eth0",
        f"ip -n {namespace} link set eth0 up",
        f"ip -n {namespace} link set lo up",
    ):
        subprocess.run(words.split(), check=True)
    return descriptor


def relay(ends: tuple[int, int], bytes_per_s: float, delay_s: float) -> None:
    free_at, number = [0.0, 0.0], 0
    waiting: list[tuple[float, int, int, bytes]] = []
    other = {ends[0]: 1, ends[1]: 0}
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            with suppress(OSError):  # the other end is gone, or full
                os.write(target, packet)
        pause = max(0.0, waiting[0][0] - now) if waiting else None
        for end in select.select(list(ends), [], [], pause)[0]:
            with suppress(BlockingIOError):
                packet = os.read(end, 65536)
                side = other[end]
                free_at[side] = max(free_at[side], time.monotonic()) + len(packet) / bytes_per_s
                number += 1
                heapq.heappush(waiting, (free_at[side] + delay_s, number, ends[side], packet))


def main() -> None:
    first, second, mbit, delay_ms = sys.argv[1:]
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))  # a wire does not wait for other programs
    ends = (open_end(first, 1), open_end(second, 2))
    print("ready", flush=True)
    relay(ends, float(mbit) * 1e6 / 8, float(delay_ms) / 1e3)


if __name__ == "__main__":
    main()
