"""A headless Chromium driven through the DevTools protocol over a pair of pipes. Needs nothing but the standard library."""

import base64
import collections
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Failure(Exception):
    """A check that did not hold."""


class Browser:
    """One browser process with one page. Use it as a context manager."""

    def __init__(self, width=1280, height=1000):
        program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CANDIDATES)), None)
        if program is None:
            raise Failure("no chromium found; set CHROMIUM to its path")
        self.profile = tempfile.mkdtemp(prefix="windlass-browser-")
        self.problems = []
        self.events = collections.Counter()
        self.size = (width, height)
        self.replies = {}
        self.arrived = threading.Condition()
        self.last_id = 0
        self.session = None
        self.closed = False
        theirs_in, self.out = os.pipe()
        self.inp, theirs_out = os.pipe()
        # Chromium reads commands from descriptor 3 and writes replies to descriptor 4; the copies must not be among them.
        high_in = fcntl.fcntl(theirs_in, fcntl.F_DUPFD, 20)
        high_out = fcntl.fcntl(theirs_out, fcntl.F_DUPFD, 20)

        def place():
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        flags = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
                 "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--mute-audio",
                 f"--user-data-dir={self.profile}", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        self.process = subprocess.Popen([program, *flags, "about:blank"], pass_fds=(3, 4), preexec_fn=place,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for fd in (theirs_in, theirs_out, high_in, high_out):
            os.close(fd)
        threading.Thread(target=self._read, daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits"):
            self.send(domain + ".enable")
        # Processor time of the main thread rather than wall time: other processes of the machine do not count.
        self.send("Performance.enable", timeDomain="threadTicks")
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed = True
        try:
            self.process.terminate()
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self):
        pending = b""
        while True:
            try:
                chunk = os.read(self.inp, 1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                break
            *messages, pending = (pending + chunk).split(b"\0")
            for message in messages:
                self._dispatch(json.loads(message))
        with self.arrived:
            self.closed = True
            self.arrived.notify_all()

    def _dispatch(self, message):
        with self.arrived:
            if "id" in message:
                self.replies[message["id"]] = message
                self.arrived.notify_all()
                return
        method, params = message.get("method"), message.get("params", {})
        self.events[method] += 1
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.problems.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.problems.append("policy: " + json.dumps(params["issue"]["details"]))
        elif method == "Page.javascriptDialogOpening":
            self.problems.append("dialog: " + params["message"])

    def send(self, method, timeout=60, **params):
        self.last_id += 1
        number = self.last_id
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        with self.arrived:
            if not self.arrived.wait_for(lambda: number in self.replies or self.closed, timeout) or number not in self.replies:
                raise Failure(f"the browser did not answer {method}")
            reply = self.replies.pop(number)
        if "error" in reply:
            raise Failure(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def eval(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise Failure(f"in {expression!r}: {details.get('exception', {}).get('description', details['text'])}")
        return result["result"].get("value")

    def wait(self, what, expression, timeout=30):
        """Waits until the expression is true and returns its value."""
        end = time.monotonic() + timeout
        while True:
            value = self.eval(expression)
            if value:
                return value
            if time.monotonic() > end:
                raise Failure(f"timed out after {timeout} s: {what}")
            time.sleep(0.03)

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.wait("the page loads", "document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width, height, phone=False):
        self.size = (width, height)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def key(self, key):
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}
        event = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        typed = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, value):
        self.send("Input.insertText", text=value)

    def click(self, selector):
        box = self.eval(f"(() => {{ const n = document.querySelector({json.dumps(selector)}); if (!n) return null;"
                        "n.scrollIntoView({block: 'nearest'}); const b = n.getBoundingClientRect();"
                        "return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        if box is None:
            raise Failure(f"nothing matches {selector}")
        self.click_at(*box)

    def click_at(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def metrics(self):
        return {m["name"]: m["value"] for m in self.send("Performance.getMetrics")["metrics"]}

    def screenshot(self, path, whole=False):
        clip = {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": self.size[0], "height": size["height"], "scale": 1}}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.send("Page.captureScreenshot", format="png", **clip)["data"]))
