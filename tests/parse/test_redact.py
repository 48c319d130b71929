"""Secrets that jobs print, and what looks like one and must stay."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.parse import redact
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

HEX = "0123456789abcdef" * 2 + "01234567"
#: One of each issuer's form, in parts for the same reason.
ISSUED = [
    "".join(parts)
    for parts in (
        *((kind, "IOSFODNN7EXAMPLE") for kind in ("AKIA", "ASIA", "ABIA", "ACCA")),
        *((f"gh{kind}_", "16C7e42F292c6912E7710c838347Ae178B4a") for kind in "pousr"),
        ("github_pat_", "11ABCDEFG0abcdefghijkl_", "x" * 59),
        *((f"gl{kind}-", "abcDEF0123456789_-xy") for kind in ("pat", "dt", "rt", "ptt", "agent")),
        *((f"xox{kind}-", "123456789012-abcdefghijkl") for kind in "abeoprs"),
        ("xoxe.", "xoxp-", "1-Mi0yLTEyMzQ1Njc4OTA"),
        ("xapp-", "1-A0123-456-abcdef0123"),
        ("hf_", "abcdefghijklmnopqrstuvwxyzABCDEFGH"),
        ("api_org_", "abcdefghijklmnopqrstuvwxyzABCDEFGH"),
        ("wandb_v1_", "abcdefghijklmnop_qrstuvwxyz0123"),
        ("local-", HEX),
        *((f"sk-{kind}-", "api03-abcdefghijklmnopqrst_uv-wx") for kind in ("ant", "proj", "svcacct", "admin", "or")),
        ("sk-", "abcdefghijklmnopqrstT3BlbkFJabcdefghijklmnopqrst"),
        ("AIza", "SyA0123456789abcdefghijklmnopqrstuv"),
        ("ya29.", "a0AfH6SMBabcdefghijklmnop-_q"),
        ("GOCSPX-", "abcdefghijklmnopqrstuvwxyz01"),
        ("1//0", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ-_"),
        ("nvapi-", "abcdefghijklmnopqrstuvwxyz-_012345"),
        ("npm_", "abcdefghijklmnopqrstuvwxyz0123456789"),
        ("pypi-", "AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA"),
        ("dckr_pat_", "abcdefghijklmnopqrstuvwxy-_"),
        ("dapi", "0123456789abcdef0123456789abcdef"),
        ("gsk_", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        ("xai-", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        ("r8_", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJK"),
        ("pplx-", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJK"),
        ("hvs.", "CAESIabcdefghijklmnopqrstuvwxyz"),
        ("dop_v1_", "0123456789abcdef" * 4),
        ("SG.", "abcdefghijklmnopqrstuv.", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"),
        ("sk_live_", "abcdefghijklmnopqrstuvwx"),
        ("rk_test_", "abcdefghijklmnopqrstuvwx"),
        ("eyJ", "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.", "SflKxwRJSMeKKF2QT4fw"),
    )
]
#: Names of variables whose value says nothing by itself.
NAMES = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_KEY",
    "COMET_API_KEY",
    "DB_PASSWORD",
    "GITHUB_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "KAGGLE_KEY",
    "NEPTUNE_API_TOKEN",
    "NGC_CLI_API_KEY",
    "OPENAI_API_KEY",
    "PGPASSWORD",
    "SECRET_KEY",
    "SSH_PASSPHRASE",
    "WANDB_API_KEY",
]

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
    *(
        (f"{name}{sign}X", f"{name}{sign}{HIDDEN}")
        for name in ("StoragePass", "JobCompPass", "AccountingStoragePass", "storagepass")
        for sign in ("=", " = ", "                = ")
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
    ("mysql -pX a mysql -pY b", f"mysql -p{HIDDEN} a mysql -p{HIDDEN} b"),
    ("mysql -pX jobsmysql -pY b", f"mysql -p{HIDDEN} jobsmysql -p{HIDDEN} b"),
    ("mysqldump -pX jobs", f"mysqldump -p{HIDDEN} jobs"),
    ("sshpass -p X ssh n1", f"sshpass -p {HIDDEN} ssh n1"),
    ("https://x.blob.example/f?sv=1&sig=abc%2BX&se=2", f"https://x.blob.example/f?sv=1&sig={HIDDEN}&se=2"),
    ("GET /f?X-Amz-Signature=0123abX HTTP", f"GET /f?X-Amz-Signature={HIDDEN} HTTP"),
    ("Cookie: session=X; id=Y", f"Cookie: {HIDDEN}"),
    ("{'Set-Cookie': 'session=X'}", f"{{'Set-Cookie': '{HIDDEN}'}}"),
    (BODY, HIDDEN),
    (f"[rank3]: {BODY}", f"[rank3]: {HIDDEN}"),
    (f"Rank 3 failed first: {BODY}.", f"Rank 3 failed first: {HIDDEN}."),
    (PEM[:45], f"-----BEGIN RSA PRIVATE KEY-----{HIDDEN}"),
    (
        rf'{{"private_key": "{PEM[:31]}\nMIIE\n{PEM[-29:]}\n", "type": "x"}}',
        f'{{"private_key": "{HIDDEN}", "type": "x"}}',
    ),
    (
        f"-----BEGIN PGP {'PRIVATE'} KEY BLOCK-----\n\nlQVY\n-----END PGP PRIVATE KEY BLOCK-----",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----{HIDDEN}-----END PGP PRIVATE KEY BLOCK-----",
    ),
    *((f"a {token} b", f"a {HIDDEN} b") for token in ISSUED),
    *((f'"{token}"', f'"{HIDDEN}"') for token in ISSUED),
    *((f"x={token},y", f"x={HIDDEN},y") for token in ISSUED),
    *((f"{name}={HEX}", f"{name}={HIDDEN}") for name in NAMES),
    *((f"{name}: {HEX}", f"{name}: {HIDDEN}") for name in NAMES),
    *(
        (f'{{"{name.lower()}": "{HEX}"}}', f'{{"{name.lower()}": "{HIDDEN}"}}')
        for name in NAMES
        if name != "KAGGLE_KEY"
    ),
    *((f"export {name}='{HEX}'", f"export {name}='{HIDDEN}'") for name in NAMES),
    *(
        (f"{scheme}://{user}:X9{middle}z@h/{tail}", f"{scheme}://{user}:{HIDDEN}@h/{tail}")
        for scheme in ("https", "postgresql+psycopg2", "mongodb+srv", "redis", "amqps", "ssh", "s3")
        for user, middle, tail in (("u", "", "x"), ("", "%2F", ""), ("a.b-c", "#&?", "d?e=f"), ("u", "@", "@v1"))
        if (middle, tail) != ("@", "@v1")
    ),
    ("mysql://root:Xa/b/c@db1:3306/x", f"mysql://root:{HIDDEN}@db1:3306/x"),
    ("https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/4", f"https://{HIDDEN}@o1.ingest.sentry.io/4"),
    (f"https://hooks.slack.com/services/T0{'0'}/B00/abcdefXYZ", f"https://hooks.slack.com/services/{HIDDEN}"),
    ("Server=db;Uid=sa;Pwd=X9z;Encrypt=1", f"Server=db;Uid=sa;Pwd={HIDDEN};Encrypt=1"),
    ("Endpoint=sb://x/;SharedAccessKey=abX=;E=1", f"Endpoint=sb://x/;SharedAccessKey={HIDDEN}"),
    ("machine api.wandb.ai login user password X9zX9z", f"machine api.wandb.ai login user password {HIDDEN}"),
    (f"$ wandb login --relogin {HEX}", f"$ wandb login --relogin {HIDDEN}"),
    ('{"auths": {"h": {"auth": "dXNlcjpwYXNz"}}}', f'{{"auths": {{"h": {{"auth": "{HIDDEN}"}}}}}}'),
    ("//registry/:_authToken=X9zX9zX9", f"//registry/:_authToken={HIDDEN}"),
    ("Authorization: Token X9zX9z", f"Authorization: Token {HIDDEN}"),
    ("Proxy-Authorization: Basic X9zX9z==", f"Proxy-Authorization: Basic {HIDDEN}"),
    ("X-Auth-Token: X9zX9zX9z", f"X-Auth-Token: {HIDDEN}"),
    ("?Expires=1&Signature=vjbyPxybdZaNmGa%2ByT272YEAiv4%3D&x", f"?Expires=1&Signature={HIDDEN}&x"),
    ("/o?X-Amz-Security-Token=X9zX9zX9z%2F&a=b", f"/o?X-Amz-Security-Token={HIDDEN}&a=b"),
    (f"SLURM_JWT={JWT}", f"SLURM_JWT={HIDDEN}"),
    (f"error: MUNGE:{'AwQD' * 8}: expired", f"error: {HIDDEN} expired"),
    ("train.py --hf-token=X9zX9zX9", f"train.py --hf-token={HIDDEN}"),
    ("train.py --api-key X9zX9zX9 -n 2", f"train.py --api-key {HIDDEN} -n 2"),
    (
        "Command '['a.py', '--hf_token', 'X9zX9zX9', '--api-key', 'X9z', '--password', \"X'9\", '--lr', '3']' returned",
        f"Command '['a.py', '--hf_token', '{HIDDEN}', '--api-key', {HIDDEN}, '--password', {HIDDEN}, '--lr', '3']'"
        " returned",
    ),
    (
        "[('password', 'X'), ('db_passwd', 'Y'), ('lr', '3')]",
        f"[('password', {HIDDEN}), ('db_passwd', {HIDDEN}), ('lr', '3')]",
    ),
    (f"https://discord.com/api/webhooks/118000/{'X9zX9' * 8}", f"https://discord.com/api/webhooks/118000/{HIDDEN}"),
    (
        "https://corp.webhook.office.com/webhookb2/X9z@9/IncomingWebhook/abc",
        f"https://corp.webhook.office.com/{HIDDEN}",
    ),
    ("login failed for user 'a' with password 'X9 z'", f"login failed for user 'a' with password {HIDDEN}"),
    ('{"user": "u", "pass": "X9z"}', f'{{"user": "u", "pass": "{HIDDEN}"}}'),
    ("rclone: s3 secret access key X9zX9zX9zX9zX9zX9z", f"rclone: s3 secret access key {HIDDEN}"),
    ("the token is X9zX9zX9", f"the token is {HIDDEN}"),
    (f"Namespace(wandb_key='{HEX}', lr=0.1)", f"Namespace(wandb_key='{HIDDEN}', lr=0.1)"),
    (f"train.py --wandb_key {HEX}", f"train.py --wandb_key {HIDDEN}"),
    ("Ocp-Apim-Subscription-Key: X9zX9zX9", f"Ocp-Apim-Subscription-Key: {HIDDEN}"),
    ("LDAP_BIND_PW=X9z", f"LDAP_BIND_PW={HIDDEN}"),
    ("<db:password>X9 z</db:password>", f"<db:password>{HIDDEN}</db:password>"),
    ('<property name="db.password" value="X9z"/>', f'<property name="db.password" value="{HIDDEN}"/>'),
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
    "special tokens ['bos_token', 'eos_token', 'mask_token']",
    '{"pass": 12, "fail": 0}',
    "the token is invalid, the key is model.layers.0.weight, its secret is out",
    "<token>3</token> name='layers.0' value='1'",
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
    # hashes
    "md5 d41d8cd98f00b204e9800998ecf8427e sha1=da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 loaded",
    "image nvcr.io/nvidia/pytorch@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "docker://registry:5000/team/image@sha256:e3b0c442",
    "torch-2.13.0+git3f78685 (commit=3f786850e387550fdab836ed7e6dc881de23001b)",
    # GUIDs, ids of groups, communicators, machines
    "NCCL INFO commId 0xf5a0b1c2d3e4f5a6 comm 0x7f3c5c0a2b10 hash 0xa4d3b1c2e5f60718",
    "PG GUID 3(TENSOR_MODEL_PARALLEL_GROUP) uuid 6f1c3a52-0d0e-4a7c-9b1e-2f3c4d5e6f70",
    "GPU-6f1c3a52-0d0e-4a7c-9b1e-2f3c4d5e6f70 MIG-6f1c3a52-0d0e-4a7c-9b1e-2f3c4d5e6f70",
    "node_guid 506b:4b03:00ca:1234 sys_image_guid=506b4b0300ca1234 gid fe80:0000:0000:0000:506b:4bff:feca:1234",
    "boot_id 3f2b9c1d-0e4f-4a6b-8c7d-9e0f1a2b3c4d instance i-0123456789abcdef0",
    "rdzv_id=5e0d2f6c run_id: none_0a1b2c3d restart_count=2",
    "02:42:ac:11:00:02 lladdr, PCI 00000000:3B:00.0, 0000:3b:00.0, busId 3b000",
    # sequence numbers, counts
    "WorkNCCL(SeqNum=2398459, OpType=ALLREDUCE, NumelIn=123456789012, NumelOut=1, Timeout(ms)=600000)",
    "last enqueued work: 2398578, last completed work: 2398458",
    "consumed token: 1048576000 token=12345678 tokens=4096000000 last_token: 50256",
    "batch_tokens: 4194304 | seq_len: 8192 | learning_token = 12345678.",
    # words that a secret's name or form resembles
    "KEY=0123456789abcdef0123 STORE_KEY=default_pg/0 CACHE_KEY: none cache_key=e3b0c44298fc1c149afbf4c8996fb924",
    "key=2/3 rkey=0x1fed lkey=0xbeef store_key: default_pg/0//cuda//3/7 keys: 12 num_keys=8 KeyError: 'key'",
    "default_pg/1//0 barrier, prefix 1//0/rank_3",
    "signature mismatch: signature=ALLREDUCE_SUM_BFLOAT16_1024x1024, same signature=all_gather_into_tensor",
    "signal=SIGTERM sig=11 exitcode -6 (signal 6) SIGNATURE",
    "AuthType=auth/munge auth/munge: credential expired, unauthorized, authority=ca",
    "MUNGE: Invalid credential, munge: decode failed",
    "hf_transfer hf_hub_download hf_home=/data/hf gsk_small pypi-server npm_config r8_x xai-org dapi",
    "sk-ant sk-proj sk-learn sk_buff: dropped risk_live_test local-rank-0 local-0123",
    "AKIA ASIAN AKIAIOSFODNN7 asia-northeast1-a",
    "eyJ eyJhbGci.x AIza ghp_short github_pat glpat-short xoxb-short",
    "BEGIN PRIVATE KEY -----BEGIN CERTIFICATE-----",
    "pass=1 fail=0 passes=12 bypass: 3 compass=N tests passed: 12, mypass",
    "cd /data; PWD=/home/alice; pwd=/data",
    "login node password-less, the login password is asked",
    "tcp://[fe80::1%eth0]:29500 tcp://n1:29500/path@2 file:///a/b@c c10d://n1:29400",
    "http://n1:8265/api@v1 see https://host/path:3/x@y",
    "https://hooks.example.com/services/T0/B0/abcdef",
    "secretary, tokenizer, tokenization took 8.123456789 s, Token indices sequence length is longer",
    "cookiecutter: done. credentials are read from the file",
    "Xid (PCI:0000:a1:00): 79, pid=1234, GPU has fallen off the bus.",
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


SHORT = [
    "MUNGE:",
    "_KEY=",
    "login a ",
    "wandb login ",
    "a://:",
    "auth='",
    ";pwd=",
    "1//0",
    "SG.",
    "signature=",
    "-",
    "a",
    " ",
    "\\",
    '"',
    "=",
    "/",
    "A1a",
    "a_PASS ",
    "-u ",
    "-u a",
    "mysql ",
    "mysql -",
    "cookie",
    "?sig=",
]


@pytest.mark.parametrize("piece", [*REPEATED, *SHORT, "bearer ", "secret-", "token:", "'", "authorization: basic "])
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    def cost(size: int) -> float:
        text = f"{piece * (size // len(piece))}token "
        began = time.process_time()
        redacted(text)
        return time.process_time() - began

    assert cost(1 << 18) < max(0.5, 40 * min(cost(1 << 14) for _ in range(3)))


@given(st.lists(st.sampled_from(["to", "ken", "=", "1", "a9", "//0", " ", "hf", "_", "x" * 20, "K"]), max_size=9))
def test_what_was_clean_without_its_digits_hides_no_secret(parts: list[str]) -> None:
    text = "".join(parts)
    redact._CLEAN.clear()
    first = redacted(text)
    redacted(text.translate(str.maketrans("", "", "0123456789")))
    assert redacted(text) == first


def test_facts_and_last_lines_are_redacted_where_logs_are_read(read: Read) -> None:
    raised = "ValueError: no access: password=hunter2"
    trace = f'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n{raised}\n'
    parsed = read(("rank3.log", f"[rank3]: start\n{trace}login https://u:hunter2@host/\n"))
    assert one(parsed, "python.exception").text == f"ValueError: no access: password={HIDDEN}"
    assert "hunter2" not in repr(parsed)
