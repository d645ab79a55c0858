"""Measures request latency: 100 concurrent clients query a small HTTP server with a SavedModel.

  python -m albert.export_model --model_dir=work/classifier --export_path=work/served/1
  python scripts/maintainers/served_latency.py work/served/1 work/text/corpus.txt

The server runs on 127.0.0.1, in its own process, with TensorFlow Serving's API: POST
/v1/models/served:predict with {"instances": ["a text", ...]}. Each round measures two servers: one
answers each request separately, the other batches the requests that are waiting. Prints requests
per second, and the median and 99th percentile of the latency.
"""

import argparse
import concurrent.futures
import http.client
import http.server
import json
import multiprocessing
import queue
import threading
import time

PATH = "/v1/models/served:predict"
ROUNDS = 3


def serve(model: str, most_together: int, told) -> None:
    """Serves until the process is ended; sends the port to `told`."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  the tokenizer's operations

    answer = tf.saved_model.load(model).signatures["serving_default"]
    waiting: queue.Queue = queue.Queue()

    def work() -> None:
        while True:
            some = [waiting.get()]
            while len(some) < most_together and not waiting.empty():
                some.append(waiting.get())
            texts = [text for instances, _ in some for text in instances]
            outputs = {name: v.numpy() for name, v in answer(text=tf.constant(texts)).items()}
            rows = [
                {name: values[i].tolist() for name, values in outputs.items() if name != "label"}
                | ({"label": outputs["label"][i].decode()} if "label" in outputs else {})
                for i in range(len(texts))
            ]
            for instances, done in some:
                done.put([rows.pop(0) for _ in instances])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            done: queue.Queue = queue.Queue(1)
            waiting.put((json.loads(self.rfile.read(length))["instances"], done))
            content = json.dumps({"predictions": done.get()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Logs nothing."""

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 256

    threading.Thread(target=work, daemon=True).start()
    server = Server(("127.0.0.1", 0), Handler)
    told.send(server.server_address[1])
    server.serve_forever()


def ask(port: int, texts: list[str]) -> list[float]:
    """Returns the seconds that each text's answer took, asked one after another."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    seconds = []
    for text in texts:
        begin = time.perf_counter()
        connection.request("POST", PATH, json.dumps({"instances": [text]}))
        told = json.loads(connection.getresponse().read())
        seconds.append(time.perf_counter() - begin)
        assert len(told["predictions"]) == 1, told
    return seconds


def measured(model: str, texts: list[str], clients: int, most_together: int) -> dict[str, float]:
    """Returns the measurements of one server queried by `clients` concurrent clients."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    server = context.Process(target=serve, args=(model, most_together, its), daemon=True)
    server.start()
    try:
        port = ours.recv()
        for count in (1, clients):  # the first requests trace
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda i: ask(port, texts[i :: len(texts) // 2]), range(count)))
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            found = sorted(s for some in pool.map(
                lambda i: ask(port, texts[i::clients]), range(clients)
            ) for s in some)
        total = time.perf_counter() - begin
    finally:
        server.terminate()
        server.join()
    return {
        "requests_per_second": round(len(found) / total, 1),
        "p50_ms": round(1000 * found[len(found) // 2], 1),
        "p99_ms": round(1000 * found[len(found) * 99 // 100], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="directory of the SavedModel")
    parser.add_argument("texts", help="file with a text in each line")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1000)
    given = parser.parse_args()
    with open(given.texts, encoding="utf-8") as stream:
        lines = [line.strip() for line in stream if line.strip()]
    texts = [lines[i % len(lines)] for i in range(given.requests)]
    for number in range(ROUNDS):
        for name, most in (("each by itself", 1), ("those that wait together", 64)):
            found = measured(given.model, texts, given.clients, most)
            print(json.dumps({"round": number, "answers": name, **found}), flush=True)


if __name__ == "__main__":
    main()
