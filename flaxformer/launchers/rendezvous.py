"""Rendezvous of the processes of one job through the shared output folder."""

import fcntl
import ipaddress
import json
import os
import socket
import struct
import time
from pathlib import Path

from flaxformer.devices import distributed
from flaxformer.system.errors import UserError
from flaxformer.system.files import write_atomically
from flaxformer.system.json_reader import parse_json

SIOCGIFADDR = 0x8915
"""Linux request number (ioctl) for the address of a network interface."""
SECONDS = 300.0


def address_of(interface: str) -> str:
    """Return the IPv4 address of this machine on an interface such as eth0; an address is returned unchanged.

    Raises:
      UserError: this machine has no such interface, or the interface has no address.
    """
    try:
        return str(ipaddress.ip_address(interface))
    except ValueError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            found = ", ".join(name for _, name in socket.if_nameindex())
            raise UserError(f"interface is '{interface}'; expected an address, or one of {found}") from None
    return socket.inet_ntoa(answer[20:24])


def rendezvous(folder: Path, name: str, interface: str, processes: int, process: int) -> None:
    """Initialize `jax.distributed` for the processes of one job.

    Process 0 takes a free port on the interface and writes the address to a file in the folder, which no other user may
    write to; the others wait for that file.

    Args:
      folder: folder shared by the processes.
      name: identifier of this attempt of this job: the same in all its processes, and different in any other.
      interface: network interface, by name or address, on which process 0 listens.
      processes: number of processes.
      process: number of this process.

    Raises:
      UserError: the interface does not exist, or the address did not appear in time.
    """
    path = folder / f"{name}.coordinator"
    if process == 0:
        address = address_of(interface)
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as asked:
            asked.bind((address, 0))
            port = asked.getsockname()[1]
        where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        os.environ["JAX_COORDINATOR_BIND_ADDRESS"] = where
        write_atomically(path, json.dumps(where).encode())
    end = time.monotonic() + SECONDS
    while not path.exists():
        if time.monotonic() > end:
            raise UserError(f"'{path}' does not exist after {SECONDS:.0f} s; expected it from the first process")
        time.sleep(0.2)
    try:
        address = parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"'{path}' is damaged ({error}); expected an address from the first process") from None
    distributed.initialize(str(address), processes, process)
