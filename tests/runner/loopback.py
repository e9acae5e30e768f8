"""SLURM cluster of two nodes on this machine for tests, with its own munge, ports and folder; removed at the end."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HOST = socket.gethostname()
"""Name of the first node, which has an address: the tasks of a job over several nodes connect to it."""
NODES = (HOST, f"{HOST}-2")
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
SETTINGS = """
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,bf_interval=2,sched_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
JobRequeue=1
KillWait=5
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
NodeName={host} NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=4000
NodeName={host}-2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=4000
PartitionName=debug Nodes={host},{host}-2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return why this machine cannot run such a cluster, or None."""
    lacking = [name for name in DAEMONS if found(name) is None]
    if lacking:
        return f"no {', '.join(lacking)} (Debian's slurm-wlm and munge)"
    return None if os.getuid() == 0 else "only root can start SLURM's daemons"


def found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


class Cluster:
    """Daemons of the cluster, as child processes."""

    def __init__(self, root: Path) -> None:
        self.root, self.processes = root, {}
        self.environment = os.environ | {"SLURM_CONF": str(root / "slurm.conf")}
        for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
            (root / name).mkdir(parents=True)
        root.chmod(0o755)
        (root / "munge").chmod(0o755)
        key = root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))

    def begin(self) -> None:
        """Start the daemons, and wait until both nodes are up."""
        root = self.root
        ports = dict(zip(("controller", "first", "second"), free_ports(3), strict=True))
        (root / "slurm.conf").write_text(SETTINGS.format(root=root, host=HOST, **ports))
        own = {name: root / "munge" / name for name in ("key", "socket", "pid", "log", "seed")}
        self.start(
            "munged", "--foreground", f"--key-file={own['key']}", f"--socket={own['socket']}",
            f"--pid-file={own['pid']}", f"--log-file={own['log']}", f"--seed-file={own['seed']}",
        )  # fmt: skip
        wait(own["socket"].exists, 10)
        self.start("slurmctld", "-D", "-f", str(root / "slurm.conf"))
        for node in NODES:
            self.start_node(node)
        wait(lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D").split() == ["2"], 40)

    def start(self, name: str, *words: str, called: str | None = None) -> None:
        with (self.root / f"{called or name}.out").open("ab") as out:
            self.processes[called or name] = subprocess.Popen(
                [found(name), *words], env=self.environment, stdout=out, stderr=out, start_new_session=True
            )

    def start_node(self, node: str) -> None:
        """Start or restart the daemon of a node."""
        self.start("slurmd", "-D", "-f", str(self.root / "slurm.conf"), "-N", node, called=node)

    def command(self, *words: str) -> str:
        """Return the output of a command of SLURM."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return the state and node of each job that SLURM lists."""
        lines = self.command("squeue", "-h", "-r", "-o", "%i %T %N").splitlines()
        return {words[0]: (words[1], (*words, "")[2]) for words in map(str.split, lines)}

    def kill_node(self, node: str) -> None:
        """Kill a node as a power failure would: its daemon and all processes of its jobs at once."""
        self.processes[node].kill()
        self.processes[node].wait()
        log = str(self.root / f"slurmd-{node}.log")
        for pid in self.running():
            if f"SLURMD_NODENAME={node}" in environment(pid) or log in open_files(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def running(self) -> list[int]:
        """Return the processes that this cluster started for its jobs, identified by their environment."""
        wanted = {f"SLURM_CONF={self.environment['SLURM_CONF']}"}
        own = {process.pid for process in self.processes.values()} | {os.getpid()}
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [pid for pid in pids if pid not in own and wanted <= environment(pid)]

    def stop(self) -> None:
        if NODES[1] in self.processes:
            self.command("scancel", "--user=root")
            deadline = time.monotonic() + 15
            while self.jobs() and time.monotonic() < deadline:
                time.sleep(0.5)
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def environment(pid: int) -> set[str]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return set()


def open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(path.readlink()))
    return found


def free_ports(count: int) -> list[int]:
    """Return unused ports."""
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in asked:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in asked]


def wait(holds, seconds: float, step: float = 0.25) -> float:
    """Wait until a condition holds; return the seconds that it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not so after {seconds} s"
        time.sleep(step)
    return time.monotonic() - began


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Context manager of a cluster."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder))
        try:
            started.begin()
            yield started
        finally:
            started.stop()
