"""Secrets that jobs print, and what looks like one and must stay."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.parse.redact import HIDDEN, redacted
from tests.parse.conftest import Read, one
from tests.parse.test_lines import NCCL, REST, TORCH

# put together here, so that no scanner of repositories takes them for real ones
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + "SflKxwRJSMeKKF2QT4fw"
GITHUB = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
HUGGING_FACE = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
SLACK = "xoxb-" + "123456789012-abcdefghijkl"
OPENAI = "sk-" + "proj-abcdefghijklmnopqrst_uv-wx"
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc/def=\n-----END RSA PRIVATE KEY-----"
BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz" + "c2gtZW"

SECRETS: list[tuple[str, str]] = [
    (f"botocore: AccessDenied for {AWS}", f"botocore: AccessDenied for {HIDDEN}"),
    (f"export AWS_SECRET_ACCESS_KEY={AWS_SECRET}", f"export AWS_SECRET_ACCESS_KEY={HIDDEN}"),
    (f"aws_secret_access_key = {AWS_SECRET} # dev", f"aws_secret_access_key = {HIDDEN} # dev"),
    (f"'Authorization': 'Bearer {JWT}'", f"'Authorization': 'Bearer {HIDDEN}'"),
    ("authorization: Basic dXNlcjpwYXNz", f"authorization: Basic {HIDDEN}"),
    ("curl -H 'X-API-Key: 0123abcd'", f"curl -H 'X-API-Key: {HIDDEN}'"),
    ("sent bearer 0123456789abcdef0123", f"sent bearer {HIDDEN}"),
    ("OperationalError: password=hunter2 host=db1", f"OperationalError: password={HIDDEN} host=db1"),
    ('{"password": "a b,c", "port": 5432}', f'{{"password": "{HIDDEN}", "port": 5432}}'),
    ("DB_PASSWD='x y'", f"DB_PASSWD='{HIDDEN}'"),
    (r'said "{\"password\": \"a b\"}"', rf'said "{{\"password\": \"{HIDDEN}"}}"'),
    ("B_PASSWD=y'DB_PASSWD=u'", f"B_PASSWD={HIDDEN}'DB_PASSWD={HIDDEN}'"),
    ("PGPASSWORD=x psql", f"PGPASSWORD={HIDDEN} psql"),
    ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", f"WANDB_API_KEY={HIDDEN}"),
    ("wandb: api_key: 0123456789abcdef", f"wandb: api_key: {HIDDEN}"),
    (f"HF_TOKEN={HUGGING_FACE}", f"HF_TOKEN={HIDDEN}"),
    (f"401 Client Error for token {HUGGING_FACE}", f"401 Client Error for token {HIDDEN}"),
    ("https://x.example/f?token=abcd1234efgh&x=1", f"https://x.example/f?token={HIDDEN}&x=1"),
    ("MY_CLIENT_SECRET_V2=zzz", f"MY_CLIENT_SECRET_V2={HIDDEN}"),
    ("train.py --wandb-token abcd1234 --lr 3", f"train.py --wandb-token {HIDDEN} --lr 3"),
    ("mysql://root:p@ss@db1:3306/x", f"mysql://root:{HIDDEN}@db1:3306/x"),
    (f"cloning https://oauth2:{GITHUB}@github.com/a/b", f"cloning https://oauth2:{HIDDEN}@github.com/a/b"),
    (f"cloning https://{GITHUB}@github.com/a/b", f"cloning https://{HIDDEN}@github.com/a/b"),
    (f"slack said {SLACK}.", f"slack said {HIDDEN}."),
    (
        f"openai.AuthenticationError: Incorrect API key provided: {OPENAI}",
        "openai.AuthenticationError: Incorrect API key provided: " + HIDDEN,
    ),
    (PEM, f"-----BEGIN RSA PRIVATE KEY-----{HIDDEN}-----END RSA PRIVATE KEY-----"),
    *(
        (f"{name}=X", f"{name}={HIDDEN}")
        for name in ("DB_PASS", "REDIS_PASS", "DB_PWD", "MYSQL_PWD", "db_pass", "credential")
    ),
    *((f"password=a{sign}X b", f"password={HIDDEN} b") for sign in ",&;)(|<>[]{}"),
    ("password     =   X", f"password     =   {HIDDEN}"),
    (r'password="a\"X" b', f'password="{HIDDEN}" b'),
    ('os.environ["HF_TOKEN"] = "abcd1234X"', f'os.environ["HF_TOKEN"] = "{HIDDEN}"'),
    ("os.environ['DB_PASS']='X'", f"os.environ['DB_PASS']='{HIDDEN}'"),
    ("https://0123456789abcdefX@github.com/a", f"https://{HIDDEN}@github.com/a"),
    ("curl -s -u user:X https://h/", f"curl -s -u user:{HIDDEN} https://h/"),
    ("curl --user 'user:X y' h", f"curl --user 'user:{HIDDEN} y' h"),
    ("mysql -h db1 -u root -pX jobs", f"mysql -h db1 -u root -p{HIDDEN} jobs"),
    ("mysqldump -pX jobs", f"mysqldump -p{HIDDEN} jobs"),
    ("sshpass -p X ssh n1", f"sshpass -p {HIDDEN} ssh n1"),
    ("https://x.blob.example/f?sv=1&sig=abc%2BX&se=2", f"https://x.blob.example/f?sv=1&sig={HIDDEN}&se=2"),
    ("GET /f?X-Amz-Signature=0123abX HTTP", f"GET /f?X-Amz-Signature={HIDDEN} HTTP"),
    ("Cookie: session=X; id=Y", f"Cookie: {HIDDEN}"),
    ("{'Set-Cookie': 'session=X'}", f"{{'Set-Cookie': '{HIDDEN}'}}"),
    (BODY, HIDDEN),
    (f"[rank3]: {BODY}", f"[rank3]: {HIDDEN}"),
    (PEM[:45], f"-----BEGIN RSA PRIVATE KEY-----{HIDDEN}"),
]

#: A job's own words that must stay as they are: a diagnosis rests on them, or a reader does.
HARMLESS = [
    "NCCL_IB_HCA=mlx5_0 NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=^lo,docker0",
    "[PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog caught collective operation timeout",
    "store key: default_pg/0//cuda//3/7",
    "n1:7:9 [0] NCCL INFO comm 0x55d0 rank 3 nranks 8 cudaDev 0 busId a1000 commId 0xf5a0b1c2d3e4f5a6 - Init START",
    "mlx5_0:1/RoCE [ro rkey=0x1fed lkey=0xbeef gid=fe80::1 guid=0x506b4b0300ca1234]",
    "tokens: 4096, tokens_per_second=812.5 num_tokens=2048 max_tokens: 128",
    "pad_token=<pad> eos_token='</s>' mask_token=[MASK] eos_token_id=50256 token=17",
    "Tokenizer(name='gpt2', tokenizer_path=/data/tok.model)",
    "KeyError: 'model.layers.0.weight'",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "tcp://10.0.0.1:29500 s3://bucket/key@2 git@github.com:a/b.git https://user@host/x",
    "password authentication failed for user alice",
    "PWD=/home/alice HOME=/home/alice",
    "sk-learn and task-0123456789abcdefghijklmnop and risk-free",
    "GPU-8f3c1a2b-1111-2222-3333-444455556666 0000:a1:00 i-0123456789abcdef0",
    "bearer authentication is required",
    "forward_pass=12.3 backward_pass: 40 ms, OLDPWD=/home/alice",
    "docker run -u 1000:1000 python -u train.py:3",
    "Unable to locate credentials: none found",
    "mysql -u root -p jobs",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
]


@pytest.mark.parametrize(("text", "shown"), SECRETS)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "text", [*(row.yes for row in load_rows().rows), *(text for text, _ in [*TORCH, *NCCL, *REST])]
)
def test_lines_of_the_pattern_rows_stay(text: str) -> None:
    assert redacted(text) == text


PIECES = st.sampled_from(
    [
        *(text for text, _ in SECRETS),
        *HARMLESS,
        "password=",
        "token: ",
        "'",
        '"',
        "@",
        "://",
        "\n",
        "eyJ",
        HIDDEN,
        "[redac",
    ]
)


@given(st.lists(PIECES | st.text(max_size=12), max_size=6).map("".join))
def test_any_text_is_read_twice_alike_and_hardly_grows(text: str) -> None:
    shown = redacted(text)
    assert redacted(shown) == shown
    assert len(shown) <= 2 * len(text) + len(HIDDEN)


REPEATED = ["eyJ-", "eyJa.", "password=", "--token ", "--a-", "-----BEGIN PRIVATE KEY-----", "a://", "a://b:c", "hf_"]


SHORT = ["-", "a", " ", "\\", '"', "=", "/", "A1a", "a_PASS ", "-u ", "-u a", "mysql ", "mysql -", "cookie", "?sig="]


@pytest.mark.parametrize("piece", [*REPEATED, *SHORT, "bearer ", "secret-", "token:", "'", "authorization: basic "])
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    def cost(size: int) -> float:
        text = f"{piece * (size // len(piece))}token "
        began = time.process_time()
        redacted(text)
        return time.process_time() - began

    assert cost(1 << 18) < max(0.5, 40 * min(cost(1 << 14) for _ in range(3)))


def test_facts_and_last_lines_are_redacted_where_logs_are_read(read: Read) -> None:
    raised = "ValueError: no access: password=hunter2"
    trace = f'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n{raised}\n'
    parsed = read(("rank3.log", f"[rank3]: start\n{trace}login https://u:hunter2@host/\n"))
    assert one(parsed, "python.exception").text == f"ValueError: no access: password={HIDDEN}"
    assert "hunter2" not in repr(parsed)
