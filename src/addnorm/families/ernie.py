"""ERNIE (Sun et al. 2019, 2021): BERT, from version 2.0 with an embedding of the task, which is task 0."""

from dataclasses import replace

from addnorm.families import bert
from addnorm.families._rows import architectures

ERNIE = replace(
    bert.BERT,
    name="ernie",
    architecture="ErnieModel",
    prefix="ernie",
    derived={
        **bert.BERT.derived,
        "embeddings.tasks": lambda hf: hf.get("task_type_vocab_size", 3) if hf.get("use_task_id") else 0,
    },
    exports={
        **bert.BERT.exports,
        "use_task_id": lambda config: config.embeddings.tasks > 0,
        "task_type_vocab_size": lambda config: config.embeddings.tasks or 3,
    },
    modules={**bert.BERT.modules, "embeddings.task_type_embeddings": "embeddings.tasks"},
    heads=architectures("Ernie", bert.TASKS),
)

FAMILIES = (ERNIE,)
