"""The proxy by which the tests of remote faults put faults in does put them in."""

import socket
import urllib.parse

import pytest

import s3


@pytest.fixture
def proxy():
    found = s3.Proxy(1)  # nothing listens there: what is handed on is cut off
    yield found
    found.close()


def asked(proxy, method: str = "GET") -> bytes:
    url = urllib.parse.urlsplit(proxy.url)
    with socket.create_connection((url.hostname, url.port), timeout=10) as client:
        client.sendall(f"{method} /bucket/x HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_what_is_forbidden_is_answered_by_403(proxy):
    proxy.forbidden = True
    answer = asked(proxy)
    assert answer.startswith(b"HTTP/1.1 403 ") and b"<Code>AccessDenied</Code>" in answer
    assert asked(proxy, "HEAD").endswith(b"\r\n\r\n")  # no body


def test_of_the_faults_some_are_errors_of_500_and_some_are_cut_off(proxy):
    proxy.faults = 1.0
    answers = [asked(proxy) for _ in range(30)]
    errors = [one for one in answers if one.startswith(b"HTTP/1.1 500 ")]
    assert 5 < len(errors) < 25 and answers.count(b"") == 30 - len(errors)
    assert proxy.failed == 30
