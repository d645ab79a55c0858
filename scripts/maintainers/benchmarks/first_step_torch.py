"""A first training step with PyTorch: python first_step_torch.py MODEL ROWS [compile]."""

import json
import sys
import time

marks = {}

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import AlbertForPreTraining  # noqa: E402

marks["import"] = time.time()
model = AlbertForPreTraining.from_pretrained(
    sys.argv[1], attn_implementation="sdpa",
    classifier_dropout_prob=0.0,  # also that of its sentence-order head
).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
marks["build"] = time.time()
rows = {name: torch.tensor(value) for name, value in np.load(sys.argv[2]).items()}
encoder = torch.compile(model.albert) if "compile" in sys.argv[3:] else model.albert
outputs = encoder(
    input_ids=rows["input_ids"].long(), attention_mask=rows["input_mask"].long(),
    token_type_ids=rows["segment_ids"].long(),
)
sequence, places = outputs.last_hidden_state, rows["masked_lm_positions"].long()
chosen = sequence.gather(1, places[..., None].expand(-1, -1, sequence.shape[-1]))
scores = model.predictions(chosen).flatten(0, 1)
loss = cross_entropy(scores, rows["masked_lm_ids"].long().flatten())
loss = loss + cross_entropy(
    model.sop_classifier(outputs.pooler_output), rows["next_sentence_labels"].long()[:, 0]
)
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
told = loss.item()
marks["first step"] = time.time()
print(json.dumps({"marks": marks, "loss": told}), flush=True)
