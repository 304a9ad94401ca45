# SPDX-License-Identifier: Apache-2.0
"""The status page in a real browser (Chromium through its WebDriver): what a person sees of a fleet, live.

Not part of `make test`, since a browser is a large package: tools/check_page runs it.
HEFT_PAGE_SHOT=FILE keeps a picture.
"""
import base64
import json
import os
import signal
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from cli_rounds import DEADLINE_S, RECIPE, TP, Process
from cli_support import Case, run, write_dense_model

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"]


class Browser:
    def __init__(self, case):
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        case.addCleanup(self.close)
        self.session = None
        for line in self.driver.stdout:
            if "was started successfully on port" in line:
                self.base = f"http://127.0.0.1:{line.split('port')[1].strip(' .' + chr(10))}"
                break
        options = {"goog:chromeOptions": {"args": FLAGS}, "goog:loggingPrefs": {"browser": "ALL"}}
        reply = self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self.session = "/session/" + reply["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:600]) from None

    def open(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def script(self, text):
        return self.call("POST", self.session + "/execute/sync", {"script": text, "args": []})

    def wait(self, what, condition):
        """Until the JavaScript expression `what` fulfils the condition."""
        end = time.monotonic() + DEADLINE_S
        while True:
            value = self.script(f"return {what}")
            if condition(value):
                return value
            if time.monotonic() > end:
                raise AssertionError(f"{what} is {value!r}")
            time.sleep(0.05)

    def complaints(self):
        return [e["message"] for e in self.call("POST", self.session + "/se/log", {"type": "browser"})]

    def shot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def close(self):
        if self.session:
            self.call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait(DEADLINE_S)
        self.driver.stdout.close()


def text_of(element):
    return f"document.getElementById('{element}').textContent"


def rows_of(table):
    return f"[...document.querySelectorAll('#{table} tbody tr')].map(r => [...r.cells].map(c => c.textContent))"


class Page(Case):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        write_dense_model(self.model)
        self.coordinator = Process(self, "coordinator", "--contact-ms", "4000")
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http://"))
        self.browser = Browser(self)

    def serve(self, rank):
        process = Process(self, "serve", "--url", self.url, *RECIPE, "--model", self.model, "--rank", rank, "--json")
        process.wait_event("registered")
        return process

    def push(self, version, model=None, code=0):
        args = ("push", model or self.model, "--url", self.url, "--version", str(version), "--wait-for", str(TP))
        self.assertEqual(run(*args).returncode, code)

    def test_a_fleet_seen_by_a_person(self):
        see = self.browser
        see.open(self.url + "/")
        see.wait(text_of("state"), lambda t: t == "idle")
        self.assertEqual(see.script(f"return {text_of('version')}"), "none")

        ranks = [self.serve(rank) for rank in range(TP)]
        members = see.wait(rows_of("members"), lambda rows: len(rows) == TP)
        self.assertEqual([row[0] for row in members], ["destination.heft.0.0", "destination.heft.0.1"])
        self.assertEqual([row[4] for row in members], ["no", "no"])

        self.push(1)  # the page shows it without being loaded again
        see.wait(text_of("version"), lambda t: t == "1")
        see.wait(text_of("serving"), lambda t: t == "2 of 2")
        rounds = see.wait(rows_of("rounds"), lambda rows: len(rows) == 1 and rows[0][3] == "committed")
        self.assertEqual(rounds[0][2], "1")
        self.assertRegex(rounds[0][6], r"^\d+(\.\d+)? (B|kB)$")
        self.assertRegex(see.script(f"return {text_of('rate')}"), r"GB/s$")
        widths = see.script("return [...document.querySelectorAll('#rounds .bar i')].map(i => [i.title, i.offsetWidth])")
        self.assertIn("stage", [title.split()[0] for title, _ in widths])
        self.assertTrue(all(width >= 1 for _, width in widths), widths)

        other = self.dir / "other"
        write_dense_model(other, layers=1)
        self.push(2, other, code=5)
        rounds = see.wait(rows_of("rounds"), lambda rows: len(rows) == 2 and rows[0][3] == "aborted")
        self.assertIn("preflight", rounds[0][9])
        see.script("document.querySelector('#rounds tbody tr').click()")
        detail = see.wait(text_of("detail"), lambda t: t != "")
        self.assertEqual(json.loads(detail)["state"], "aborted")

        ranks[1].child.send_signal(signal.SIGSTOP)
        see.wait("document.querySelectorAll('#members .n.bad').length", lambda n: n == 1)
        ranks[1].child.send_signal(signal.SIGCONT)
        see.wait("document.querySelectorAll('#members .n.bad').length", lambda n: n == 0)
        if "HEFT_PAGE_SHOT" in os.environ:
            see.shot(os.environ["HEFT_PAGE_SHOT"])
        self.assertEqual(see.complaints(), [])

        self.coordinator.stop()
        see.wait(text_of("contact"), lambda t: t.startswith("no answer"))

    def test_names_are_text_and_never_markup(self):
        see = self.browser
        see.open(self.url + "/")
        see.wait(text_of("state"), lambda t: t == "idle")
        hostile = '<img src=x onerror="document.title=1">'
        see.script(f"showMembers([{{id: {json.dumps(hostile)}, state: 'idle', phase: 'none', result: 'ok', condition: 'ok', "
                   "role: 'destination', silent_ms: 0, contact: 'ok'}])")
        self.assertEqual(see.script("return document.querySelectorAll('#members img').length"), 0)
        self.assertEqual(see.script("return document.querySelector('#members td').textContent"), hostile)
        # nothing from elsewhere, and nobody may frame it
        with urllib.request.urlopen(self.url + "/", timeout=DEADLINE_S) as reply:
            policy = reply.headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("frame-ancestors 'none'", policy)


if __name__ == "__main__":
    unittest.main()
