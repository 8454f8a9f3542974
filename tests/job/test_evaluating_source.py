"""Scripts whose Trainer evaluates before it has trained, by their source."""

import ast

from tests.each import each
from zlaunch.job.evaluating_source import untrained_evaluations, walk

HEAD = "from transformers import AutoModel, Trainer\ntrainer = Trainer(model, args)\n"
GUARDED = f"{HEAD}if args.do_train:\n    trainer.train()\n"
IN_MAIN = "from transformers import Trainer\ndef main():\n    t = Trainer(model)\n    print(t.evaluate())\n"

CERTAIN = {
    f"{HEAD}trainer.evaluate()": "",
    f"{HEAD}metrics = trainer.predict(test).metrics": "",
    f"{GUARDED}if args.do_eval:\n    m = trainer.evaluate()": "do_eval",
    f"{GUARDED}if args.do_predict:\n    trainer.predict(test)": "do_predict",
    f"{GUARDED}trainer.evaluate()": "",
    f"{HEAD}if args.do_train and args.x:\n    trainer.train()\ntrainer.evaluate()": "",
    f"{HEAD}def tokens(x):\n    return x\nwith torch.no_grad():\n    trainer.evaluate()": "",
    f"{IN_MAIN}main()": "",
    f"{IN_MAIN}if __name__ == '__main__':\n    main()": "",
    "import transformers\nt = transformers.Trainer(model)\nt.evaluate()": "",
}
"""Source → the switch without which it does not evaluate."""

OPEN = (
    f"{HEAD}trainer.train()\ntrainer.evaluate()",
    f"{HEAD}trainer.evaluate()\nif not args.eval_only:\n    trainer.train()",
    f"{HEAD}if args.do_train or args.x:\n    trainer.train()\ntrainer.evaluate()",
    f"{HEAD}if args.do_train:\n    pass\nelse:\n    trainer.train()\ntrainer.evaluate()",
    f"{HEAD}fit(trainer)\ntrainer.evaluate()",
    f"{HEAD}trainer.deepspeed = engine\nother = trainer\ntrainer.evaluate()",
    f"{HEAD}trainer.hyperparameter_search()\ntrainer.evaluate()",
    f"{HEAD}for data in sets:\n    trainer.evaluate(data)",
    f"{HEAD}if args.do_eval and x:\n    trainer.evaluate()",
    f"{HEAD}x and trainer.evaluate()",
    f"{HEAD}if not files:\n    sys.exit()\ntrainer.evaluate()",
    f"args.do_train = True\n{GUARDED}trainer.evaluate()",
    f"args = TrainingArguments(do_train=True)\n{GUARDED}trainer.evaluate()",
    f"class A(TrainingArguments):\n    do_train: bool = True\n{GUARDED}trainer.evaluate()",
    f"setattr(args, 'do_train', True)\n{GUARDED}trainer.evaluate()",
    f"{HEAD}Trainer.evaluate = mine\ntrainer.evaluate()",
    "from mine import Trainer\ntrainer = Trainer(model)\ntrainer.evaluate()",
    "from transformers import Trainer\nclass T(Trainer):\n    pass\nt = T(model)\nt.evaluate()",
    f"{HEAD}other = Trainer(model)\nother.train()\ntrainer.evaluate()",
    f"{IN_MAIN}",
    f"{IN_MAIN}if args.x:\n    main()",
    f"{HEAD}model.eval()",
)


@each("source", CERTAIN)
def test_an_evaluation_without_a_training_is_found(source: str) -> None:
    assert {found.switch for found in untrained_evaluations(*walk(ast.parse(source)))} == {CERTAIN[source]}


@each("source", OPEN)
def test_a_script_that_may_train_before_is_left_alone(source: str) -> None:
    assert untrained_evaluations(*walk(ast.parse(source))) == ()
