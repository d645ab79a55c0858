"""transformers' side of the benchmarks, and that of tokenizers. Imports nothing from the project.

Runs in PyTorch, or in onnxruntime or OpenVINO from PyTorch's export (a specification's "runtime").
"""

import numpy as np
import serve


def prepare(spec):
    if spec["work"] == "tokenize":
        return _tokenize(spec)
    import torch

    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    torch.set_default_device(_device(spec))
    work = {"inference": _inference, "pretrain": _pretrain, "finetune": _finetune, "predict": _predict}
    return work[spec["work"]](spec, serve.load_rows(spec))


def _tokenize(spec):
    import tokenizers

    tokenizer, texts = tokenizers.Tokenizer.from_file(spec["tokenizer"]), serve.read_lines(spec)

    def turn():
        return tokenizer.encode_batch(texts, add_special_tokens=False)

    return turn, {"ids": [i for encoding in turn() for i in encoding.ids]}


def _device(spec):
    return "cuda" if spec.get("device") == "gpu" else "cpu"


def _tensors(rows):
    import torch

    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    return {theirs: torch.tensor(np.asarray(rows[ours], np.int64)) for ours, theirs in names.items()}


def _autocast(spec):
    import torch

    return torch.autocast(_device(spec), torch.bfloat16, enabled=spec.get("precision") == "bfloat16")


def _load(spec, kind):
    import transformers

    model = getattr(transformers, kind).from_pretrained(
        spec["model"], attn_implementation=spec.get("attn_implementation", "sdpa"),
        classifier_dropout_prob=0.0,  # also that of its sentence-order head
    )
    return model.to(_device(spec))


def _compiled(spec, model):
    import torch

    return torch.compile(model) if spec.get("compile") else model


# --- Answers ---


def _answers(spec, model, tensors, names):
    """Returns a function that maps a batch to the named outputs as arrays, computed by the runtime."""
    import torch

    if runtime := spec.get("runtime"):
        path = spec["outputs"].removesuffix(".npz") + ".onnx"
        _export(model, tensors, names, path)
        return _onnxruntime(spec, path, names) if runtime == "onnxruntime" else _openvino(spec, path, names, tensors)
    call = _compiled(spec, model)

    def answer(batch):
        with torch.inference_mode(), _autocast(spec):
            outputs = call(**batch)
            return [getattr(outputs, name).float().cpu().numpy() for name in names]

    return answer


def _export(model, tensors, names, path):
    """Writes the model as an ONNX graph of any batch and length."""
    import torch

    inputs = {name: value[:2, :16] for name, value in tensors.items()}
    axes = {0: "batch", 1: "length"}
    with torch.inference_mode():
        torch.onnx.export(
            model, (inputs,), path, input_names=list(inputs), output_names=names, dynamo=False,
            dynamic_axes={name: axes for name in inputs} | {name: {0: "batch"} for name in names},
        )


def _onnxruntime(spec, path, names):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = spec["threads"]
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(names, {name: x.numpy() for name, x in batch.items()})


def _openvino(spec, path, names, tensors):
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    if spec["precision"] == "int8":  # quantized as its makers do, with the texts to calibrate it
        import nncf

        lengths = tensors["attention_mask"].sum(1)[:16]
        batches = [{name: x[i : i + 1, :length].numpy() for name, x in tensors.items()}
                   for i, length in enumerate(lengths)]
        model = nncf.quantize(model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER)
    compiled = core.compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": spec["threads"], "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32" if spec["precision"] == "float32" else "bf16",
    })

    def answer(batch):
        found = compiled({name: x.numpy() for name, x in batch.items()})
        return [found[name] for name in names]

    return answer


def _inference(spec, rows):
    model, tensors = _load(spec, "AlbertModel").eval(), _tensors(rows)
    answer = _answers(spec, model, tensors, ["last_hidden_state", "pooler_output"])
    sequence, pooled = answer(tensors)
    outputs = {"sequence_output": sequence * rows["input_mask"][..., None], "pooled_output": pooled}
    return lambda: answer(tensors), outputs


def _predict(spec, rows):
    model, tensors = _load(spec, "AlbertForSequenceClassification").eval(), _tensors(rows)
    answer = _answers(spec, model, tensors, ["logits"])
    lengths, size = rows["input_mask"].sum(1), spec["batch_size"]
    order = np.arange(len(lengths))
    if spec["batching"] == "grouped":
        order = np.argsort(-lengths, kind="stable")

    def turn():
        logits = np.zeros((len(order), int(rows["label_ids"].max()) + 1), np.float32)
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            [logits[chosen]] = answer(_batch(spec, tensors, lengths, chosen))
        return logits

    return turn, {"logits": turn()}


def _batch(spec, tensors, lengths, chosen):
    """Returns the chosen texts, padded to the longest of them or to the full length."""
    width = None if spec["batching"] == "padded" else int(lengths[chosen].max())
    return {name: value[chosen, :width] for name, value in tensors.items()}


# --- Training ---


def _step(spec, model, optimizer, loss_of):
    """Makes a training step; returns its loss."""
    import torch

    optimizer.zero_grad(set_to_none=True)
    with _autocast(spec):
        loss = loss_of()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def _pretrain(spec, rows):
    import torch
    from torch.nn.functional import cross_entropy

    model, tensors = _load(spec, "AlbertForPreTraining").train(), _tensors(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    positions = torch.tensor(np.asarray(rows["masked_lm_positions"], np.int64))
    targets = torch.tensor(rows["masked_lm_ids"].astype(np.int64))
    order = torch.tensor(np.asarray(rows["next_sentence_labels"][:, 0], np.int64))

    def loss_of_all():  # as shipped: vocabulary scores at every position
        labels = torch.full_like(tensors["input_ids"], -100).scatter(1, positions, targets)
        return model(**tensors, labels=labels, sentence_order_label=order).loss

    def loss_of_masked():
        outputs = model.albert(**tensors)
        index = positions[..., None].expand(-1, -1, outputs.last_hidden_state.shape[-1])
        scores = model.predictions(outputs.last_hidden_state.gather(1, index))
        masked = cross_entropy(scores.flatten(0, 1), targets.flatten())
        return masked + cross_entropy(model.sop_classifier(outputs.pooler_output), order)

    loss_of = _compiled(spec, loss_of_masked if spec.get("gathered") else loss_of_all)

    def turn():
        for _ in range(spec.get("steps_per_turn", 1)):
            loss = _step(spec, model, optimizer, loss_of)
        return loss.item()  # waits for a GPU

    return turn, {"loss": turn()}


def _finetune(spec, rows):
    import torch

    model = _load(spec, "AlbertForSequenceClassification").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    tensors, labels = _tensors(rows), torch.tensor(np.asarray(rows["label_ids"], np.int64))
    lengths, size = rows["input_mask"].sum(1), spec["batch_size"]
    rng = np.random.default_rng(0)

    def batches():
        order = rng.permutation(len(lengths))
        if spec["batching"] == "grouped":  # by length within chunks of 50 batches, as theirs does
            chunks = [order[i : i + 50 * size] for i in range(0, len(order), 50 * size)]
            order = np.concatenate([c[np.argsort(-lengths[c], kind="stable")] for c in chunks])
        return [order[start : start + size] for start in range(0, len(order) - size + 1, size)]

    def turn():
        losses = [
            _step(spec, model, optimizer, lambda: model(
                **_batch(spec, tensors, lengths, chosen), labels=labels[chosen]).loss)
            for chosen in batches()
        ]
        return torch.stack(losses).mean().item()

    return turn, {"loss": turn()}


def _gpu_peak_bytes():
    import torch

    return torch.cuda.max_memory_allocated()


serve.serve(prepare, _gpu_peak_bytes)
