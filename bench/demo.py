"""The demo: a sentence-embedding model with its real weights, compiled, and what that gained.

    sentences -> tokens -> BertModel -> mean over the tokens -> unit length -> similarities

Then the same model as eager, torch.compile and Preheat run it: the first call cold, the first call
in a new process that finds the cache, the steady state, and the error against float64.
"""

import torch
from rich.console import Console
from rich.table import Table

import preheat
from bench import models, suite
from bench.table import notes, progress_line


def run(console: Console) -> None:
    """Prints the similarities and the table; a line that moves says what is being measured."""
    with progress_line(console) as say:
        say("loading the model")
        model, tokenizer = models.load_minilm()
        say("compiling and embedding")
        with models.settings():
            similarity = similarities(preheat.compile(model), tokenizer, models.SENTENCES)
        console.print(_similarity_table(similarity))
        result = suite.measure("minilm", suite.backends_here(), progress=say)
    console.print(_result_table(result))
    for line in notes(result):
        console.print(line, style="yellow", markup=False)
    console.print(
        "one thread, medians, backends in alternation; cold: empty cache; warm: a new process "
        "that finds "
        "it filled; error: largest difference from float64 over the largest value",
        style="dim",
    )


def similarities(model: torch.nn.Module, tokenizer, sentences: tuple[str, ...]) -> torch.Tensor:
    """Cosines between the sentences' embeddings: [N, N] for N sentences, float32."""
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    embedding = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    return embedding @ embedding.T


def _similarity_table(similarity: torch.Tensor) -> Table:
    table = Table(title="all-MiniLM-L6-v2: how similar the sentences are", title_justify="left")
    table.add_column("")
    for number in range(len(similarity)):
        table.add_column(str(number + 1), justify="right")
    for number, (sentence, row) in enumerate(zip(models.SENTENCES, similarity.tolist())):
        cells = [f"[bold]{value:.2f}[/bold]" if value > 0.35 else f"{value:.2f}" for value in row]
        table.add_row(f"{number + 1}  {sentence}", *cells)
    return table


def _result_table(result: suite.Result) -> Table:
    table = Table(
        title=f"6 sentences, {models.MODELS['minilm'].meaning.split(',')[0]}", title_justify="left"
    )
    for head in ("", "first call, cold", "first call, warm", "steady state", "error vs float64"):
        table.add_column(head, justify="right" if head else "left")
    for name in suite.NAMES:
        if name == "torch.compile" and not suite.has_cpp_compiler():
            table.add_row(name, *["n/a (no C++ compiler)"] * 4)
            continue
        table.add_row(
            name,
            _seconds(result.cold_s.get(name)),
            _seconds(result.warm_s.get(name)),
            _seconds(result.steady_us.get(name), 1e-6),
            f"{result.error[name]:.1e}" if name in result.error else "-",
        )
    return table


def _seconds(value: float | None, unit_s: float = 1.0) -> str:
    if value is None:
        return "-"
    seconds = value * unit_s
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
