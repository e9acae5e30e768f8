"""`examples/clusters/`: every field is one of its format, and the commands train each share of a study once.

The fields of Kubernetes and SkyPilot that the files use, with their types, are copied below from
github.com/kubernetes-sigs/jobset, config/components/crd/bases (jobset.x-k8s.io/v1alpha2, commit 08dfbdfd);
github.com/kubernetes-sigs/kueue, config/components/crd/bases (kueue.x-k8s.io/v1beta2, commit ff69552e);
kubernetes.io/docs/reference/kubernetes-api (v1 PersistentVolumeClaim); and `sky.utils.schemas` of SkyPilot 0.14.1.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from study.tiny import FILE

from flaxformer.cli.parsing import parse
from flaxformer.store.store import Store

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"
TEXT, WHOLE, QUANTITY = str, int, (str, int)
"""Types of fields; a quantity of Kubernetes is a number or a text such as 32Gi."""
META = {"name": TEXT, "namespace": TEXT, "labels": {"*": TEXT}}
CONTAINER = {
    "name": TEXT,
    "image": TEXT,
    "workingDir": TEXT,
    "command": [TEXT],
    "args": [TEXT],
    "resources": {"requests": {"*": QUANTITY}, "limits": {"*": QUANTITY}},
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
}
POD = {
    "restartPolicy": ("Always", "Never", "OnFailure"),
    "terminationGracePeriodSeconds": WHOLE,
    "containers": [CONTAINER],
    "volumes": [{"name": TEXT, "persistentVolumeClaim": {"claimName": TEXT}}],
}
RULE = {
    "action": ("Count", "FailIndex", "FailJob", "Ignore"),
    "onExitCodes": {"containerName": TEXT, "operator": ("In", "NotIn"), "values": [WHOLE]},
    "onPodConditions": [{"type": TEXT}],
}
JOB = {
    "completionMode": ("Indexed", "NonIndexed"),
    "completions": WHOLE,
    "parallelism": WHOLE,
    "backoffLimit": WHOLE,
    "podFailurePolicy": {"rules": [RULE]},
    "template": {"spec": POD},
}
REPLICATED = {
    "name": TEXT,
    "replicas": WHOLE,
    "dependsOn": [{"name": TEXT, "status": ("Ready", "Complete")}],
    "template": {"spec": JOB},
}
FLAVOR = {"name": TEXT, "resources": [{"name": TEXT, "nominalQuota": QUANTITY}]}
KUBERNETES = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {"replicatedJobs": [REPLICATED]},
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): {"nodeLabels": {"*": TEXT}},
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): {"clusterQueue": TEXT},
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): {
        "namespaceSelector": {"matchLabels": {"*": TEXT}},
        "resourceGroups": [{"coveredResources": [TEXT], "flavors": [FLAVOR]}],
    },
    ("v1", "PersistentVolumeClaim"): {
        "accessModes": [("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")],
        "resources": {"requests": {"*": QUANTITY}},
    },
}
"""Fields of `spec` by version and kind."""
TASK = {
    "name": TEXT,
    "num_nodes": WHOLE,
    "workdir": TEXT,
    "resources": {"infra": TEXT, "image_id": TEXT, "accelerators": TEXT},
    "volumes": {"*": TEXT},
    "run": TEXT,
}
VOLUME = {
    "name": TEXT,
    "type": ("k8s-pvc", "k8s-hostpath", "runpod-network-volume"),
    "infra": TEXT,
    "size": TEXT,
    "config": {"access_mode": ("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany", "ReadOnlyMany")},
}


def problems(value, schema, place=""):
    """What is wrong with a value: fields that a schema does not have, and values of another type."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{place} is no mapping"]
        fields = {name: schema.get(name, schema.get("*")) for name in value}
        unknown = [f"{place}/{name} is unknown" for name, field in fields.items() if field is None]
        return unknown + [
            text for name, field in fields.items() if field for text in problems(value[name], field, f"{place}/{name}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{place} is no list"]
        return [text for number, item in enumerate(value) for text in problems(item, schema[0], f"{place}/{number}")]
    if isinstance(schema, tuple) and isinstance(schema[0], str):
        return [] if value in schema else [f"{place} is {value!r}"]
    return [] if isinstance(value, schema) and not isinstance(value, bool) else [f"{place} is {value!r}"]


def documents():
    """Every document of every file, by file and number."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text())):
            yield pytest.param(path.name, document, id=f"{path.stem}-{number}")


@pytest.mark.parametrize(("name", "document"), list(documents()))
def test_every_field_is_one_of_its_format(name, document):
    if "apiVersion" in document:
        spec = KUBERNETES[document["apiVersion"], document["kind"]]
        schema = {"apiVersion": TEXT, "kind": TEXT, "metadata": META, "spec": spec}
    else:
        schema = VOLUME if "type" in document else TASK
    assert problems(document, schema) == []
    assert problems(document | {"invented": 1}, schema) == ["/invented is unknown"]


def test_skypilot_reads_its_files():
    sky = pytest.importorskip("sky")
    for path in sorted(FOLDER.glob("skypilot_[st]*.yaml")):
        assert sky.Task.from_yaml(str(path)).num_nodes == yaml.safe_load(path.read_text())["num_nodes"]


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


def jobset_shares():
    """The command and the environment of each pod of a share."""
    job = load("jobset.yaml")["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    return [(command, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(job["completions"])]


def skypilot_nodes(name):
    """The command and the environment of each node of a task."""
    task = load(name)
    nodes = task["num_nodes"]
    addresses = "\n".join(f"10.0.0.{node + 1}" for node in range(nodes))
    about = {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NODE_IPS": addresses}
    return [(["bash", "-c", task["run"]], about | {"SKYPILOT_NODE_RANK": str(rank)}) for rank in range(nodes)]


@pytest.fixture
def words(tmp_path):
    """A function that returns the words that a command gives to `flaxformer`."""
    program = tmp_path / "flaxformer"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)

    def call(command, environment):
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run(command, env={"PATH": path} | environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return call


@pytest.mark.parametrize(
    "workers", [jobset_shares(), skypilot_nodes("skypilot_study.yaml")], ids=["jobset", "skypilot"]
)
def test_each_worker_trains_another_share_of_one_study(words, workers):
    arguments = [parse(words(*worker)) for worker in workers]
    assert [one.share for one in arguments] == [f"{number}/{len(workers)}" for number in range(1, len(workers) + 1)]
    assert {(one.file.name, str(one.output)) for one in arguments} in (
        {("induction.py", "None")},
        {("induction.py", "/shared/runs/induction")},
    )


def test_each_node_is_another_process_of_one_job(words):
    arguments = [parse(words(*node)) for node in skypilot_nodes("skypilot_train.yaml")]
    assert [one.process for one in arguments] == [0, 1]
    assert {(one.processes, one.coordinator, one.mesh) for one in arguments} == {(2, "10.0.0.1:4321", "data=16")}


def test_names_that_refer_to_another_file_are_those_of_that_file():
    claim, jobset = load("claim.yaml"), load("jobset.yaml")
    flavor, cluster_queue, queue = yaml.safe_load_all((FOLDER / "queue.yaml").read_text())
    text = (FOLDER / "jobset.yaml").read_text()
    assert set(re.findall(r"claimName: (\S+)", text)) == {claim["metadata"]["name"]}
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]
    assert queue["spec"]["clusterQueue"] == cluster_queue["metadata"]["name"]
    (group,) = cluster_queue["spec"]["resourceGroups"]
    assert [one["name"] for one in group["flavors"]] == [flavor["metadata"]["name"]]
    asked = {
        name for line in re.findall(r"(?:requests|limits): \{(.*)\}", text) for name in re.findall(r"([\w./]+):", line)
    }
    assert asked == set(group["coveredResources"])
    for name in ("skypilot_study.yaml", "skypilot_train.yaml"):
        assert set(load(name)["volumes"].values()) == {load("skypilot_volume.yaml")["name"]}


@pytest.mark.slow
def test_the_shares_and_the_report_of_the_jobset_make_a_whole_study(tmp_path):
    """The commands of the pods, one after another, in a folder in place of the volume."""
    text = FILE.replace('name="tiny"', 'name="induction"')
    (tmp_path / "induction.py").write_text(text)
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}
    for command, about in jobset_shares():
        subprocess.run(command, env=environment | about, cwd=tmp_path, check=True, capture_output=True)
    report = load("jobset.yaml")["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["containers"][0]
    subprocess.run(report["command"], env=environment, cwd=tmp_path, check=True, capture_output=True)
    rows = Store(tmp_path / "runs/induction").rows()
    assert len(rows) == 12
    assert (tmp_path / "runs/induction/report.html").exists()
