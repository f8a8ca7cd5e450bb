"""What a user reads if a URL, a bucket, the credentials or the environment are wrong."""

import pytest

import cloud
from tilewright.errors import ResourceError
from tilewright.runtime.stores import objects

pytest.importorskip("obstore", reason="obstore is not installed (extra cloud)")

import obstore

GONE = "404 Not Found: <Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"


@pytest.fixture(name="s3", scope="module")
def _s3():
    """The environment of a process that reaches a real S3 server."""
    pytest.importorskip("moto.server")
    with cloud.s3_server() as environment:
        yield environment


@pytest.fixture(name="clients", autouse=True)
def _clients(monkeypatch, tmp_path):
    """Each test makes its own clients: they remember the environment."""
    monkeypatch.setenv("TILEWRIGHT_OBJECTS", str(tmp_path / "copies"))
    monkeypatch.setattr(objects, "open_bucket", objects.open_bucket.__wrapped__)
    (tmp_path / "in.txt").write_text("good\nbad\n")


def classify(run, output, given="in.txt"):
    code, _, errors = run("classify", "--model", "critic", "-i", given, "-o", output)
    return code, errors


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FileNotFoundError, GONE),  # of a write that is conditional: it is no "taken"
        (obstore.exceptions.PreconditionError, GONE),
        (obstore.exceptions.GenericError, GONE),
        (obstore.exceptions.GenericError, GONE.replace("NoSuchBucket", "ContainerNotFound")),
    ],
)
def test_a_bucket_that_is_not_there(kind, said):
    wanted = r"gs://there/a/b: there is no bucket 'there'. Make it first"
    with pytest.raises(ResourceError, match=wanted), objects.naming_store("gs://there/a/b"):
        raise kind(said)


@pytest.mark.parametrize(
    ("url", "said", "told"),
    [
        ("s3://b/a", "Error performing GET http://x:9/b - HTTP error: builder error", "AWS_ALLOW_HTTP=true"),
        ("az://b/a", "Error performing GET http://x:9/b - HTTP error: builder error", "AZURE_ALLOW_HTTP=true"),
        ("s3://b/a", "Generic S3 error: Missing SecretAccessKey", "AWS_SECRET_ACCESS_KEY is not set"),
        ("az://b/a", "Account must be specified", "AZURE_STORAGE_ACCOUNT_NAME is not set"),
        ("s3://b/a", "Error performing PUT http://169.254.169.254/latest/api/token", "AWS_ACCESS_KEY_ID and"),
        ("gs://b/a", "GET http://metadata.google.internal/computeMetadata", "GOOGLE_APPLICATION_CREDENTIALS is not"),
        ("az://b/a", "GET http://169.254.169.254/metadata/identity", "AZURE_STORAGE_ACCOUNT_KEY are not set"),
        ("s3://b/a", "dns error", "the store fails: dns error. Check the URL, the credentials and the network"),
    ],
)
def test_reasons_that_are_known(monkeypatch, url, said, told):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
                 "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ResourceError) as caught, objects.naming_store(url):
        raise obstore.exceptions.GenericError(said)
    assert told in str(caught.value) and str(caught.value).startswith(url)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("S3://bucket/a.jsonl", "s3://bucket/a.jsonl"),
        ("s3:/bucket/a.jsonl", "s3://bucket/a.jsonl"),
        ("file:/a/b.jsonl", "file:///a/b.jsonl"),
    ],
)
def test_misspelt_urls(run, url, right, tmp_path):
    """They are no local paths."""
    for code, errors in (
        classify(run, url),
        classify(run, "out.jsonl", url),
        run("status", url)[::2],
        run("work", url)[::2],
    ):
        assert code == 2 and f"the URL '{url}' is misspelt" in errors and f"Write {right}; or ./{url}" in errors, errors
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_the_url_is_the_users(run, monkeypatch):
    """And not that of an object which tilewright looks for."""

    def refuse(*given, **named):
        raise obstore.exceptions.GenericError("Generic S3 error: Missing SecretAccessKey")

    monkeypatch.setattr(objects, "open_bucket", lambda bucket, bulk=False: None)
    for name in ("get", "head", "list", "put"):
        monkeypatch.setattr(obstore, name, refuse)
    url = "s3://bucket/x.jsonl"
    for code, errors in (classify(run, url), run("status", url)[::2], run("work", url)[::2]):
        assert code == 4 and f"{url}: the environment variable AWS_SECRET_ACCESS_KEY is not set" in errors, errors


@pytest.mark.parametrize("url", ["foo://bucket/a.jsonl", "https://example.com/a.jsonl"])
def test_outputs_of_unknown_schemes(run, url):
    """An output cannot be downloaded."""
    code, errors = classify(run, url)
    assert code == 2 and "unknown scheme" in errors and "Give a local path, or one of these URLs" in errors
    code, errors = classify(run, "out.jsonl", url)
    assert code == 2 and "Download it first, and give the local path" in errors


@pytest.mark.long
def test_a_server_says_so(run, s3, monkeypatch):
    """The words of a real server and of obstore."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, s3[name])
    for output in ("s3://nobucket/out.jsonl", "s3://nobucket/parts/"):
        code, errors = classify(run, output)
        assert code == 4 and "there is no bucket 'nobucket'" in errors and "another run" not in errors
    code, errors = classify(run, "out.jsonl", "s3://nobucket/in.txt")
    assert code == 4 and "there is no bucket 'nobucket'" in errors and "<" not in errors
    code, _, errors = run("status", "s3://nobucket/out.jsonl")
    assert code == 4 and "there is no bucket 'nobucket'" in errors
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, errors = classify(run, "s3://bucket/out.jsonl")
    assert code == 4 and "AWS_SECRET_ACCESS_KEY is not set" in errors
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    code, errors = classify(run, "s3://bucket/out.jsonl")
    assert code == 4 and "AWS_ALLOW_HTTP=true" in errors
