# SPDX-License-Identifier: Apache-2.0
"""The launch recipes of examples/launching: run where their launcher is installed, read where it cannot be.

torchrun comes with PyTorch. mpirun and Ray are tried where they are there; a skipped one says so.
"""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples/launching"
sys.path.insert(0, str(ROOT / "tests/e2e"))

from cli_rounds import Process  # noqa: E402
from cli_support import Case, run  # noqa: E402

WAIT_S = 240


class Launchers(Case):
    def setUp(self):
        super().setUp()
        self.coordinator = Process(self, "coordinator")
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http://"))

    def launch(self, *command, **environment):
        path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=WAIT_S,
            env=os.environ | {"HEFT_URL": self.url, "PATH": path, "OMP_NUM_THREADS": "1"} | environment,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual([line.split(":")[0] for line in lines if line.startswith("step")], ["step 1", "step 2", "step 3"])
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2: version 3, mean 3.0", lines)
        status = run("status", "--url", self.url, "--json")
        self.assertIn('"committed_version": 3', status.stdout)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_torchrun(self):
        self.launch("sh", str(EXAMPLES / "torchrun.sh"))

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_mpirun(self):
        more = "--oversubscribe" + (" --allow-run-as-root" if os.geteuid() == 0 else "")
        self.launch("sh", str(EXAMPLES / "mpirun.sh"), MPI_ARGS=more)

    @unittest.skipUnless(importlib.util.find_spec("ray"), "Ray is not installed")
    def test_ray(self):
        self.launch(sys.executable, str(EXAMPLES / "ray_job.py"), self.url)


class Files(Case):
    def known(self, command):
        """The options of a command, and all variables."""
        options = set(re.findall(r"^    (--[a-z-]+)", self.heft("help", command).stdout, re.M))
        return options, set(re.findall(r"HEFT_[A-Z_]+", (ROOT / "docs/guide/configuration.md").read_text()))

    @unittest.skipUnless(importlib.util.find_spec("yaml"), "PyYAML is not installed")
    def test_kubernetes_manifests_hang_together(self):
        import yaml

        documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
        names = {(document["kind"], document["metadata"]["name"]) for document in documents}
        self.assertEqual(len(names), len(documents))
        services = {name for kind, name in names if kind == "Service"}
        options, variables = self.known("coordinator")
        for document in documents:
            self.assertIn("apiVersion", document)
            if document["kind"] == "Service":
                continue
            self.check_pod(document["spec"], services, options, variables)

    def check_pod(self, spec, services, options, variables):
        pod = spec["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        for container in pod["containers"] + pod["initContainers"]:
            for mount in container["volumeMounts"]:
                self.assertIn(mount["name"], volumes)
            for variable in container.get("env", ()):
                self.assertIn(variable["name"], variables)
                if variable["name"] == "HEFT_URL":
                    self.assertIn(re.fullmatch(r"https://([a-z-]+):7070", variable["value"])[1], services)
            command = container["command"]
            for word in command if command[0] == "heft" else ():
                if word.startswith("--"):
                    self.assertIn(word, options)

    def test_scripts_can_be_parsed_and_name_real_options(self):
        options, variables = self.known("coordinator")
        for file, shell in (("torchrun.sh", "sh"), ("mpirun.sh", "sh"), ("slurm.sbatch", "bash")):
            text = (EXAMPLES / file).read_text()
            self.assertEqual(subprocess.run([shell, "-n", str(EXAMPLES / file)]).returncode, 0)
            self.assertLessEqual(set(re.findall(r"HEFT_[A-Z_]+", text)), variables, file)
            for command in re.findall(r"heft coordinator((?:.|\\\n)*?)(?:&|\})", text):
                self.assertLessEqual(set(re.findall(r"--[a-z-]+", command)), options, file)


if __name__ == "__main__":
    unittest.main()
