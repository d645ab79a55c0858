"""Object stores that are slow, fail or disconnect: a real S3 server."""

import pathlib

import jobs
import pytest
import s3
from apart import needs
from helpers import assert_one_clear_line


needs("moto", "s3fs", extra="remote-test")


@pytest.fixture(scope="module")
def moto():
    with s3.server() as port:
        yield port


@pytest.fixture
def proxy(moto, tmp_path, monkeypatch):
    """The proxy through which this test and its processes reach an empty bucket, `bucket`."""
    found = s3.Proxy(moto)
    for name, value in s3.environment(found.url, tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    store = system(found)
    if store.exists("bucket"):
        store.rm("bucket", recursive=True)
    store.mkdir("bucket")
    yield found
    found.close()


def system(proxy):
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem(
        use_listings_cache=False, endpoint_url=proxy.url, skip_instance_cache=True
    )


def fetch(store, prefix: str, folder: pathlib.Path) -> pathlib.Path:
    """Copies the objects under a prefix to a folder; returns the folder."""
    store.get(f"bucket/{prefix}", str(folder / prefix), recursive=True)
    return folder / prefix


def remote_flags(store, run: jobs.Run, **changes) -> list[str]:
    """Uploads a run's inputs to the bucket; returns the flags that train on them there."""
    for path in run.out.parent.glob("train.tfrecord*"):
        store.put_file(str(path), f"bucket/records/{path.name}")
    remote = {"input_file": "s3://bucket/records/train*", "output_dir": "s3://bucket/run"}
    return [*run.flags, "--do_eval", *(f"--{k}={v}" for k, v in (remote | changes).items())]


def test_records_and_runs_are_the_same_with_errors_and_cuts_and_latency(proxy, tmp_path, whole):
    store = system(proxy)
    flags = remote_flags(store, whole)
    store.put_file(jobs.write_corpus(tmp_path), "bucket/text/corpus.txt")
    store.put_file(jobs.write_vocabulary(tmp_path), "bucket/vocab.txt")
    proxy.latency, proxy.faults = 0.02, 0.1
    assert jobs.create_data(*jobs.data_flags(
        tmp_path, input_file="s3://bucket/text/*.txt", vocab_file="s3://bucket/vocab.txt",
        output_file="s3://bucket/made/out.tfrecord",
    )) == 0
    assert jobs.pretrain(*flags) == 0
    assert proxy.failed > 3
    proxy.latency, proxy.faults = 0, 0
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    made = fetch(store, "made", tmp_path / "fetched")
    assert (made / "out.tfrecord").read_bytes() == (tmp_path / "out.tfrecord").read_bytes()
    jobs.assert_same_run(fetch(store, "run", tmp_path / "fetched"), whole.out, 23)


def test_what_cannot_be_reached_is_one_line(proxy, tmp_path, monkeypatch, capfd):
    def refused(**flag) -> str:
        system(proxy)
        assert jobs.create_data(*jobs.data_flags(tmp_path, **flag)) == 2
        return assert_one_clear_line(capfd.readouterr().err)

    assert "no file matches s3://nowhere/text/*.txt" in refused(input_file="s3://nowhere/text/*.txt")
    line = refused(output_file="s3://nowhere/out.tfrecord")
    assert "cannot write s3://nowhere: The specified bucket does not exist" in line
    text = {"input_file": "s3://bucket/text/*.txt"}
    proxy.forbidden = True
    line = refused(**text)
    assert "permission denied" in line and "bucket" in line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert "no credentials" in refused(**text)
