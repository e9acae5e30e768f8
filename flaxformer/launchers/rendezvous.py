"""Rendezvous of the processes of one job, through the study's folder, which all of them see."""

import fcntl
import ipaddress
import json
import os
import socket
import struct
import time
from pathlib import Path

from flaxformer import distributed
from flaxformer.files import write_atomically
from flaxformer.struct import UserError

SIOCGIFADDR = 0x8915
"""Linux's question for the address of a network interface."""
SECONDS = 300.0


def address_of(interface: str) -> str:
    """The IPv4 address of this machine on an interface, such as eth0; an address is its own.

    Raises:
      UserError: this machine has no such interface, or it has no address.
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
    """Join the processes of a job into one run of JAX.

    The first takes a free port on the interface, listens there alone, and writes the address into the folder, which
    no other user may write to; the others wait for it.

    Args:
      folder: shared by the processes.
      name: the same in all processes of a job, and in no other job, nor in the same one when it is run again.
      interface: where the first process listens: a name or an address.

    Raises:
      UserError: the interface is none, or the first process did not come.
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
            raise UserError(f"'{path}' is not there after {SECONDS:.0f} s; expected it from the job's first process")
        time.sleep(0.2)
    distributed.initialize(json.loads(path.read_bytes()), processes, process)
