"""What is hidden in texts, arguments and values, and what is not."""

import pytest

from zlaunch.secrets import HIDDEN, hide_arguments, hide_in, hide_in_text, secret_arguments


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=nobodymayknow", "--wandb_api_key nobodymayknow", "password: nobodymayknow",
        "Authorization: Bearer nobodymayknow", "https://me:nobodymayknow@host/x", "hf_nobodymayknownobodymayknow",
        "--use_auth_token --hub_token nobodymayknow", "tokenizer --hub_token nobodymayknow", "KEY=nobodymayknow",
        "tokenize hub_token=nobodymayknow", "token: password: nobodymayknow", '"api_key": "nobodymayknow"',
        "'--header=Authorization: Bearer nobodymayknow'", "--header='X-Api-Key: nobodymayknow'",
        "https://nobodymayknow@host/x", "--key nobody8mayknow", "--private_key nobodymayknow", "https://host/x?a=1&token=nobodymayknow&b=2", "Cookie: a=b; c=nobodymayknow",
    ],
)  # fmt: skip
def test_a_secret_in_a_text_is_hidden(text: str) -> None:
    assert "mayknow" not in hide_in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "--max_tokens 128", "KeyError: text", "--tokenizer_name gpt2", "the tokens are fine", "no API key was found",
        "`--stage 3`: saves 4.2 GiB; costs time", "write `--env HF_TOKEN=VALUE`", "unknown-key: DeepSpeed has none",
        "unknown key: foo", "KEY=$(head -c 24 /dev/urandom)", "--pad_token <pad>", "author: me", "passes: yes",
        "the host asks for a password: it accepts none of your keys", "HF_TOKEN=$HF_TOKEN", "--output_path out", "secretKeyRef:\n  name: hub\n  key: token", "--prompt_key question", "--sort-key=train_loss",
    ],
)  # fmt: skip
def test_other_words_stay(text: str) -> None:
    assert hide_in_text(text) == text


def test_the_values_of_secret_arguments_are_hidden() -> None:
    words = ["train.py", "--hub_token", "x", "--api-key=y", "--max_new_tokens", "5", "z"]
    assert hide_arguments(words) == [
        "train.py", "--hub_token", HIDDEN, f"--api-key={HIDDEN}", "--max_new_tokens", "5", "z",
    ]  # fmt: skip


def test_arguments_that_may_be_secret_are_named_without_their_value() -> None:
    words = ["--hub_token", "x", "--lr", "1", "--api-key=y", "hf_abcdefghijklmnopqrstuvwxyz"]
    assert secret_arguments(words) == [f"--hub_token {HIDDEN}", f"--api-key={HIDDEN}", HIDDEN]


def test_all_text_below_a_secret_name_is_hidden() -> None:
    value = {"comet": {"api_key": "x", "api_keys": ["y"]}, "tokens": 5, "name": "z"}
    assert hide_in(value) == {"comet": {"api_key": HIDDEN, "api_keys": [HIDDEN]}, "tokens": 5, "name": "z"}
