"""Make the tiny models. Run by the engine's own Python (torch, transformers, tokenizers): `train.py OUT`.

A Llama target of 2.6 M parameters, a one-layer draft model, an EAGLE and an EAGLE-3 head that learn to
guess what the target says, and heads that are broken on purpose. Weight names and configurations are those
that vLLM 0.32.0 loads; nothing here runs in the project's own environment.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.lab.assets.corpus import CHAT_TEMPLATE, SPECIAL_TOKENS, conversations, documents
from tests.lab.assets.heads import Eagle, Eagle3, save_head

SEED = 20
VOCABULARY = 448
HIDDEN = 256
WINDOW = 48
BATCH = 8
AUX_LAYERS = (1, 2, 3)

Loss = Callable[[torch.Tensor], torch.Tensor]


def config(layers: int, *, hidden: int = HIDDEN, heads: int = 4, kv_heads: int = 2) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype="float32",
    )


def tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any prompt can be encoded, also one the models never saw."""
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        documents(rng, 250),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


class Corpus:
    """All conversations as one row of token ids; ``windows`` draws training batches from it."""

    def __init__(self, words: PreTrainedTokenizerFast, rng: random.Random) -> None:
        encoded = words.backend_tokenizer.encode_batch(list(conversations(rng, 500)))
        self.ids = torch.tensor([i for text in encoded for i in text.ids])

    def windows(self, steps: int) -> Iterator[torch.Tensor]:
        for _ in range(steps):
            starts = torch.randint(0, len(self.ids) - WINDOW - 2, (BATCH,))
            yield torch.stack([self.ids[s : s + WINDOW + 2] for s in starts.tolist()])


def fit(name: str, module: nn.Module, loss_of: Loss, batches: Iterator[torch.Tensor], steps: int) -> None:
    """One-cycle AdamW: a few hundred steps are all there is time for."""
    peak = 4e-3
    start = time.monotonic()
    optimizer = torch.optim.AdamW(module.parameters(), lr=peak)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.15)
    loss = torch.zeros(())
    for batch in batches:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"{name}: {steps} steps, loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True)


def save(module: nn.Module, words: PreTrainedTokenizerFast, out: Path) -> None:
    module.save_pretrained(out)
    words.save_pretrained(out)


def eagle_loss(head: Eagle, target: LlamaForCausalLM, unroll: int) -> Loss:
    """Guess the target's next hidden state and word, from its last hidden state and the word just said."""

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = target.model(input_ids=ids).last_hidden_state
            said = target.lm_head(hidden)[:, 1:].argmax(-1)
            embedded = target.model.embed_tokens(ids[:, 1:])
        total = torch.zeros(())
        state = hidden[:, :-1]
        for _ in range(unroll):
            guess = head(embedded, state)
            total = total + F.smooth_l1_loss(guess, hidden[:, 1:])
            total = total + F.cross_entropy(target.lm_head(guess).flatten(0, 1), said.flatten())
            state = torch.cat([hidden[:, :1], guess[:, :-1]], 1)
        return total

    return loss_of


def eagle3_loss(head: Eagle3, target: LlamaForCausalLM, unroll: int) -> Loss:
    """Guess the target's next word from several of its layers; later guesses read the head's own state."""

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            seen = target.model(input_ids=ids, output_hidden_states=True)
            said = target.lm_head(seen.last_hidden_state)[:, 1:].argmax(-1)
            layers = torch.cat([seen.hidden_states[i] for i in AUX_LAYERS], -1)[:, :-1]
            embedded = target.model.embed_tokens(ids[:, 1:])
        total = torch.zeros(())
        first = state = head.fc(layers)
        for _ in range(unroll):
            logits, after = head(embedded, state)
            total = total + F.cross_entropy(logits.flatten(0, 1), said.flatten())
            state = torch.cat([first[:, :1], after[:, :-1]], 1)
        return total

    return loss_of


def eagle3_config(like: LlamaConfig) -> dict[str, object]:
    return {
        **like.to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCABULARY,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
            "use_aux_hidden_state": True,
        },
    }


def make(out: Path, steps: int) -> None:
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    words = tokenizer(rng)
    corpus = Corpus(words, rng)

    target = LlamaForCausalLM(config(4))
    fit("target", target, lambda x: target(input_ids=x, labels=x).loss, corpus.windows(2 * steps), 2 * steps)
    target.eval().requires_grad_(False)
    save(target, words, out / "tiny-llama")

    small = config(1)
    draft = LlamaForCausalLM(small)
    fit("draft", draft, lambda x: draft(input_ids=x, labels=x).loss, corpus.windows(steps), steps)
    save(draft, words, out / "tiny-llama-draft")

    eagle = Eagle(small)
    fit("eagle", eagle, eagle_loss(eagle, target, 2), corpus.windows(steps), steps)
    embedding = {"embed_tokens.weight": target.model.embed_tokens.weight}
    one = {**small.to_dict(), "architectures": ["LlamaForCausalLM"]}
    save_head(eagle.state_dict() | embedding, one, out / "tiny-llama-eagle")

    useless = Eagle3(small, len(AUX_LAYERS))
    save_head(useless.state_dict(), eagle3_config(small), out / "tiny-llama-eagle3-useless")
    eagle3 = Eagle3(small, len(AUX_LAYERS))
    eagle3.lm_head.weight.data.copy_(target.lm_head.weight)
    fit("eagle3", eagle3, eagle3_loss(eagle3, target, 3), corpus.windows(steps), steps)
    save_head(eagle3.state_dict(), eagle3_config(small), out / "tiny-llama-eagle3")

    wide = config(1, hidden=2 * HIDDEN, heads=8)
    save_head(Eagle3(wide, len(AUX_LAYERS)).state_dict(), eagle3_config(wide), out / "tiny-llama-eagle3-wide")


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
