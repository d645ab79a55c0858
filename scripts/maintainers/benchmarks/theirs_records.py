"""A plain version of the original's recipe for pretraining records, in pure Python.

All documents are in memory, one instance is made after another, and a record is
one `tf.train.Example`. Imports nothing from the project. It draws at random where
the original does.
"""

import random
import string
import unicodedata

import numpy as np
import record_facts
import serve

SEED, NGRAM, MASKED = 12345, 3, 0.15
LETTERS = set(string.ascii_lowercase)
SPECIALS = set(string.punctuation) - set("'<=>")


def prepare(spec):
    import sentencepiece
    import tensorflow as tf

    model = sentencepiece.SentencePieceProcessor(model_file=spec["spm_model_file"])
    maker = Maker(model, spec)
    path = spec["outputs"] + ".tfrecord"

    def turn():
        rng = random.Random(SEED)
        np.random.seed(SEED)
        instances = maker.make(spec["text"], spec["dupe_factor"], rng)
        with tf.io.TFRecordWriter(path) as writer:
            for instance in instances:
                writer.write(maker.example(tf, *instance).SerializeToString())

    turn()
    return turn, record_facts.describe(path, spec["length"], spec["predictions"], True)


def starts_word(piece):
    if piece[0] in "▁<":
        return True
    if len(piece) == 1 and piece in SPECIALS:
        return True
    return any(c not in LETTERS and c not in SPECIALS for c in piece.lower())


class Maker:
    def __init__(self, model, spec):
        self.model, self.length, self.most = model, spec["length"], spec["predictions"]
        self.short = spec["short_seq_prob"]
        self.words = [model.IdToPiece(i) for i in range(model.GetPieceSize())]
        weights = np.array([1 / n for n in range(1, NGRAM + 1)])
        self.chances = weights / weights.sum()

    def make(self, path, dupe_factor, rng):
        documents = self.read(path)
        rng.shuffle(documents)
        instances = []
        for _ in range(dupe_factor):
            for index in range(len(documents)):
                instances.extend(self.pairs(documents, index, rng))
        rng.shuffle(instances)
        return instances

    def read(self, path):
        documents = [[]]
        with open(path, encoding="utf-8", errors="replace", newline="\n") as stream:
            for line in stream:
                line = unicodedata.normalize("NFKD", " ".join(line.split()))
                line = "".join(c for c in line if not unicodedata.combining(c)).lower()
                if not line:
                    documents.append([])
                elif pieces := self.pieces(line):
                    documents[-1].append(pieces)
        return [document for document in documents if document]

    def pieces(self, line):
        found = []
        for piece in self.model.EncodeAsPieces(line):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                cut = self.model.EncodeAsPieces(piece[:-1].replace("▁", ""))
                if piece[0] != "▁" and cut[0][0] == "▁":
                    cut = cut[1:] if cut[0] == "▁" else [cut[0][1:]] + cut[1:]
                found.extend(cut + [","])
            else:
                found.append(piece)
        return found

    def pairs(self, documents, index, rng):
        document, room = documents[index], self.length - 3
        target = rng.randint(2, room) if rng.random() < self.short else room
        made, chunk, i = [], [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                end = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
                first = sum(chunk[:end], [])
                second, label = sum(chunk[end:], []), 0
                if len(chunk) == 1:
                    second, label = self.stranger(documents, index, target - len(first), rng), 1
                elif rng.random() < 0.5:
                    first, second, label = second, first, 1
                while len(first) + len(second) > room:
                    longer = first if len(first) > len(second) else second
                    longer.pop(0 if rng.random() < 0.5 else -1)
                tokens = ["[CLS]"] + first + ["[SEP]"] + second + ["[SEP]"]
                segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
                made.append((segments, label, *self.mask(tokens, rng)))
                chunk = []
            i += 1
        return made

    def stranger(self, documents, index, room, rng):
        for _ in range(10):
            other = rng.randint(0, len(documents) - 1)
            if other != index:
                break
        tokens, start = [], rng.randint(0, len(documents[other]) - 1)
        for i in range(start, len(documents[other])):
            tokens.extend(documents[other][i])
            if len(tokens) >= room:
                break
        return tokens

    def mask(self, tokens, rng):
        words, boundary = [], [0] * len(tokens)
        for i, token in enumerate(tokens):
            if token in ("[CLS]", "[SEP]"):
                boundary[i] = 1
            elif words and not starts_word(token):
                words[-1].append(i)
            else:
                words.append([i])
                boundary[i] = int(starts_word(token))
        count = min(self.most, max(1, int(round(len(tokens) * MASKED))))
        grams = [[words[i:i + n + 1] for n in range(NGRAM)] for i in range(len(words))]
        rng.shuffle(grams)
        result, labels = list(tokens), {}
        for choices in grams:
            if len(labels) >= count:
                break
            n = np.random.choice(range(1, NGRAM + 1), p=self.chances)
            places = sum(choices[n - 1], [])
            while len(labels) + len(places) > count and n > 1:
                n -= 1
                places = sum(choices[n - 1], [])
            if len(labels) + len(places) > count or any(i in labels for i in places):
                continue
            for i in places:
                if rng.random() < 0.8:
                    result[i] = "[MASK]"
                elif rng.random() >= 0.5:
                    result[i] = self.words[rng.randint(0, len(self.words) - 1)]
                labels[i] = tokens[i]
        rng.shuffle(grams)  # only affects later draws
        return result, boundary, sorted(labels.items())

    def example(self, tf, segments, label, tokens, boundary, labels):
        def ints(values, count):
            values = list(values) + [0] * (count - len(values))
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

        weights = [1.0] * len(labels) + [0.0] * (self.most - len(labels))
        ids = self.model.PieceToId
        return tf.train.Example(features=tf.train.Features(feature={
            "input_ids": ints([ids(t) for t in tokens], self.length),
            "input_mask": ints([1] * len(tokens), self.length),
            "segment_ids": ints(segments, self.length),
            "token_boundary": ints(boundary, self.length),
            "masked_lm_positions": ints([i for i, _ in labels], self.most),
            "masked_lm_ids": ints([ids(t) for _, t in labels], self.most),
            "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
            "next_sentence_labels": ints([label], 1),
        }))


serve.serve(prepare)
