"""The AWS side of a SageMaker HyperPod cluster, where these credentials may read it. Needs the extra ``[aws]``.

`place` says which cluster and region, `client` asks, `cluster` and `findings` read the answers, `observed` joins them
for the pure judges (`account`, `status`, `events`, `health`, `security`, `names`), `checks` lists these.
"""
