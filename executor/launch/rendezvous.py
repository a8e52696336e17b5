"""Where the hosts of a job meet, as this host sees it.

torchrun looks up its own host's name to find out whether it is the one to be met, and to tell the
others where its ranks listen; gloo looks it up to choose a network. On many hosts the name stands
for the loopback address (Debian writes 127.0.1.1 into /etc/hosts), or for nothing that the others
can reach. So all three are found by the route to the rendezvous instead, and said.
"""

import errno
import fcntl
import socket
import struct
from dataclasses import dataclass

from meshplan.executor.launch.preflight import CannotRun

SIOCGIFADDR = 0x8915  # netdevice(7): the address of a network interface


@dataclass(frozen=True, slots=True)
class Meeting:
    """A rendezvous and this host.

    endpoint       HOST:PORT, the same for every host
    is_here        whether HOST is this host, where the store of the job is then
    local_address  the one by which the other hosts reach this one
    interface      its network interface, None if none has it as its first address
    """

    endpoint: str
    is_here: bool
    local_address: str
    interface: str | None

    @property
    def options(self) -> tuple[str, ...]:
        """What torchrun is told of it beside the endpoint."""
        return (f"--rdzv-conf=is_host={int(self.is_here)}", f"--local-addr={self.local_address}")


def endpoint(text: str) -> tuple[str, int]:
    """The host and port of HOST:PORT; raises `CannotRun`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CannotRun(f"--rendezvous {text!r} is not a HOST:PORT such as gpu-node-1:29500")
    return host, int(port)


def meeting_at(text: str) -> Meeting:
    """The rendezvous HOST:PORT. Raises `CannotRun` unless it is one that this host can reach, and
    its port free if it is here.
    """
    host, port = endpoint(text)
    with socket.socket(type=socket.SOCK_DGRAM) as towards:
        try:
            towards.connect((host, port))  # sends nothing, but chooses a route
        except socket.gaierror:
            raise CannotRun(f"--rendezvous {text}: no host of that name is known here") from None
        except OSError as error:
            raise CannotRun(f"--rendezvous {text}: no way there ({error.strerror})") from None
        local = towards.getsockname()[0]
    return Meeting(text, _is_here(text, host, port), local, _interface_of(local))


def _is_here(text: str, host: str, port: int) -> bool:
    """Whether `host` is this host; raises `CannotRun` if it is and the port is taken."""
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            mine.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotRun(f"--rendezvous {text}: the port is taken; choose another") from None
            return False
    return True


def _interface_of(address: str) -> str | None:
    with socket.socket(type=socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                asked = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, asked)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
