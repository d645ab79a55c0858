"""transformers' side of the model benchmarks. Imports nothing from the project.

Runs in PyTorch, or in onnxruntime or OpenVINO from PyTorch's export (a specification's "runtime").
"""

import numpy as np
import serve


def prepare(spec):
    import torch

    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    torch.set_default_device(_device(spec))
    rows = serve.load_rows(spec)
    work = {
        "inference": _inference, "pretrain": _pretrain, "finetune": _finetune, "predict": _predict,
    }
    return work[spec["work"]](spec, rows)


def _device(spec):
    return "cuda" if spec.get("device") == "gpu" else "cpu"


def _tensors(rows):
    import torch

    names = {"input_ids": "input_ids", "input_mask": "attention_mask",
             "segment_ids": "token_type_ids"}
    return {
        theirs: torch.tensor(np.asarray(rows[ours], np.int64)) for ours, theirs in names.items()
    }


def _autocast(spec):
    import torch

    precision = spec.get("precision", "float32")
    return torch.autocast(_device(spec), torch.bfloat16, enabled=precision == "bfloat16")


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


def _answers(spec, model, tensors, names):
    """Returns a function that maps a batch to the named outputs as arrays, computed by the runtime."""
    runtime = spec.get("runtime")
    if not runtime:
        return _plain(spec, _compiled(spec, model), names)
    path = spec["outputs"].removesuffix(".npz") + ".onnx"
    _export(model, tensors, names, path)
    run = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime]
    return run(spec, path, names, tensors)


def _plain(spec, call, names):
    import torch

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


def _onnxruntime(spec, path, names, tensors):
    import onnxruntime

    if spec.get("is_int8"):
        from onnxruntime.quantization import quantize_dynamic

        exported, path = path, path.replace(".onnx", ".int8.onnx")
        quantize_dynamic(exported, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = spec["threads"]
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(names, {name: x.numpy() for name, x in batch.items()})


_CALIBRATION_TEXTS = 64


def _openvino(spec, path, names, tensors):
    import openvino

    precision = {"float32": "f32", "bfloat16": "bf16"}[spec.get("precision", "float32")]
    graph = openvino.Core().read_model(path)
    if spec.get("is_int8"):
        import nncf

        texts = [{name: x[i : i + 1, : int(tensors["attention_mask"][i].sum())].numpy()
                  for name, x in tensors.items()}
                 for i in range(min(_CALIBRATION_TEXTS, len(tensors["input_ids"])))]
        graph = nncf.quantize(graph, nncf.Dataset(texts), model_type=nncf.ModelType.TRANSFORMER,
                              subset_size=len(texts))
    compiled = openvino.Core().compile_model(graph, "CPU", {
        "INFERENCE_NUM_THREADS": spec["threads"], "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    })

    def answer(batch):
        found = compiled({name: x.numpy() for name, x in batch.items()})
        return [found[name] for name in names]

    return answer


def _recompute_layers(model):
    """Makes each layer recompute its activations: their ALBERT has no switch for it."""
    from torch.utils.checkpoint import checkpoint

    for group in model.albert.encoder.albert_layer_groups:
        def forward(*args, plain=group.forward, **kwargs):
            return checkpoint(plain, *args, use_reentrant=False, **kwargs)

        group.forward = forward


def _inference(spec, rows):
    model, tensors = _load(spec, "AlbertModel").eval(), _tensors(rows)
    answer = _answers(spec, model, tensors, ["last_hidden_state", "pooler_output"])

    def turn():
        return answer(tensors)

    sequence, pooled = turn()
    return turn, {
        "sequence_output": sequence * rows["input_mask"][..., None], "pooled_output": pooled
    }


def _pretrain(spec, rows):
    import torch
    from torch.nn.functional import cross_entropy

    model, tensors = _load(spec, "AlbertForPreTraining").train(), _tensors(rows)
    if spec.get("gradient_checkpointing"):
        _recompute_layers(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    positions = torch.tensor(np.asarray(rows["masked_lm_positions"], np.int64))
    # Slots without a prediction point at [CLS], which never has one: the loss ignores them.
    filled = rows["masked_lm_weights"] > 0
    targets = torch.tensor(np.where(filled, rows["masked_lm_ids"], -100).astype(np.int64))
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

    loss_function = _compiled(spec, loss_of_masked if spec.get("gathered") else loss_of_all)

    def turn():
        for _ in range(spec.get("steps_per_turn", 1)):
            optimizer.zero_grad(set_to_none=True)
            with _autocast(spec):
                loss = loss_function()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    return turn, {"loss": turn()}


def _finetune(spec, rows):
    import torch

    model = _load(spec, "AlbertForSequenceClassification").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    tensors, labels = _tensors(rows), torch.tensor(np.asarray(rows["label_ids"], np.int64))
    lengths = rows["input_mask"].sum(1)
    size, count = spec["batch_size"], len(lengths)
    rng = np.random.default_rng(0)

    def batches():
        order = rng.permutation(count)
        if spec["batching"] == "grouped":  # by length within chunks of 50 batches, as theirs does
            chunks = [order[i : i + 50 * size] for i in range(0, count, 50 * size)]
            order = np.concatenate([c[np.argsort(-lengths[c], kind="stable")] for c in chunks])
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]

    def turn():
        losses = []
        for chosen in batches():
            width = tensors["input_ids"].shape[1]
            if spec["batching"] != "padded":
                width = int(lengths[chosen].max())
            batch = {name: value[chosen, :width] for name, value in tensors.items()}
            optimizer.zero_grad(set_to_none=True)
            with _autocast(spec):
                loss = model(**batch, labels=labels[chosen]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()  # waits for a GPU

    return turn, {"loss": turn()}


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
            width = tensors["input_ids"].shape[1]
            if spec["batching"] != "padded":
                width = int(lengths[chosen].max())
            batch = {name: value[chosen, :width] for name, value in tensors.items()}
            [logits[chosen]] = answer(batch)
        return logits

    return turn, {"logits": turn()}


def _gpu_peak_bytes():
    import torch

    return torch.cuda.max_memory_allocated()


serve.serve(prepare, _gpu_peak_bytes)
