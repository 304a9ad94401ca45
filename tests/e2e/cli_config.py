# SPDX-License-Identifier: Apache-2.0
"""Settings as a user gives them: file, environment, options; and who may talk to a coordinator."""
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from cli_support import Case, HEFT, run

TOKEN = "0123456789abcdef0123456789abcdef"


class Config(Case):
    def write(self, text):
        path = self.dir / "heft.conf"
        path.write_text(text)
        return path

    def settings(self, *args, **kwargs):
        return {row["name"]: row for row in self.json("config", *args, **kwargs)}

    def test_every_origin_is_told(self):
        path = self.write("# mine\npoll-ms = 500\nflip-ms = 7000\nstage-ms = 9000\n")
        rows = self.settings("--settings", path, "--poll-ms", "300", env={"HEFT_FLIP_MS": "8000"})
        self.assertEqual((rows["poll-ms"]["value"], rows["poll-ms"]["origin"]), ("300", "flag"))
        self.assertEqual((rows["flip-ms"]["value"], rows["flip-ms"]["where"]), ("8000", "HEFT_FLIP_MS"))
        self.assertEqual((rows["stage-ms"]["value"], rows["stage-ms"]["where"]), ("9000", f"{path}:4"))
        self.assertEqual((rows["abort-ms"]["value"], rows["abort-ms"]["origin"]), ("180000", "default"))
        self.assertEqual((rows["url"]["value"], rows["url"]["origin"]), (None, "none"))
        text = self.heft("config", env={"HEFT_SETTINGS": str(path)}).stdout
        self.assertRegex(text, rf"poll-ms +500 +{path}:2\n")

    def test_mistakes_are_errors_with_their_place(self):
        for text, part in (
            ("\npol-ms = 1", ":2: unknown key \"pol-ms\"; nearest: poll-ms"),
            ("poll-ms = fast", ":1: poll-ms: \"fast\" is not a whole number from 1 to 86400000"),
            ("poll-ms 5", "is not \"key = value\""),
        ):
            path = self.write(text)
            for command in (("config",), ("coordinator",), ("status", "--url", "http://127.0.0.1:1")):
                self.assertIn(part, self.heft(*command, "--settings", path, code=2).stderr)
        self.assertIn("HEFT_POLL_MS: \"0\" is", self.heft("coordinator", code=2, env={"HEFT_POLL_MS": "0"}).stderr)
        self.assertIn("--poll-ms: \"0\" is", self.heft("coordinator", "--poll-ms", "0", code=2).stderr)
        self.assertIn("settings file", self.heft("config", "--settings", self.dir / "gone", code=4).stderr)

    def test_misspelt_variables_are_told(self):
        err = self.heft("config", env={"HEFT_POL_MS": "1"}).stderr
        self.assertIn("HEFT_POL_MS in the environment is no setting; nearest: HEFT_POLL_MS", err)

    def test_a_url_in_the_file_is_enough(self):
        path = self.write("url = http://127.0.0.1:1")
        self.assertIn("--url URL is missing", self.heft("status", code=2).stderr)
        self.assertIn("http://127.0.0.1:1", self.heft("status", "--settings", path, code=5).stderr)


class Service(Case):
    def private(self, name, text):
        path = self.dir / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def start(self, *args, **env):
        port = self.dir / "port"
        port.unlink(missing_ok=True)
        process = subprocess.Popen(
            [HEFT, "coordinator", "--port-file", str(port), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.addCleanup(self.stop, process)
        end = time.monotonic() + 20
        while not port.exists():
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else "")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return process, process.stdout.readline().strip()

    def stop(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        process.stdout.close()
        process.stderr.close()

    def test_beyond_loopback_is_refused_before_it_listens(self):
        err = self.heft("coordinator", "--address", "0.0.0.0", code=2).stderr
        self.assertIn("give token-file, tls-cert and tls-key, or say insecure", err)

    def test_insecure_warns(self):
        process, url = self.start("--address", "0.0.0.0", "--insecure")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        self.assertIn("warn: sync: insecure: listening on 0.0.0.0 without token-file", err)

    def test_token_by_every_way(self):
        token = self.private("token", TOKEN + "\n")
        process, url = self.start("--token-file", token)
        self.assertIn("wants a token", self.heft("status", "--url", url, code=5).stderr)
        self.heft("status", "--url", url, "--token-file", token)
        self.heft("status", "--url", url, env={"HEFT_TOKEN_FILE": str(token)})
        settings = self.dir / "heft.conf"
        settings.write_text(f"url = {url}\ntoken-file = {token}\n")
        self.heft("status", "--settings", settings)
        self.heft("verify", "--live", "--settings", settings, code=5)  # nobody is there, but we are let in
        self.heft("remove", "destination.heft.0.0", "--force", "--settings", settings, code=5)
        command = pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes()
        self.assertNotIn(TOKEN.encode(), command)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        self.assertNotIn(TOKEN, out + err)

    def test_the_environment_reaches_the_service(self):
        process, url = self.start(HEFT_CONTACT_MS="900")
        status = json.loads(self.heft("status", "--url", url, "--json").stdout)
        self.assertEqual(status["state"], "idle")


if __name__ == "__main__":
    unittest.main()
