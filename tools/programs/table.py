"""The programs."""

from tools.programs.program import Package, Program, Repository, Way

TRANSFORMERS = Repository("huggingface/transformers", "d6a6c82680cba9c51decdacac6dd6315ea4a766a")
ACCELERATE = Repository("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
PEFT = Repository("huggingface/peft", "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40")
EXAMPLES = Repository("deepspeedai/DeepSpeedExamples", "45b4b7156c8794a3452a5a7d03dbd8d797068569")
LIGHTNING = Repository("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
NANOGPT = Repository("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
PYTORCH = Repository("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
MINGPT = Repository("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
SENTENCES = Repository("huggingface/sentence-transformers", "cad211983f36ce458e9b3360f3e11b29fc54cbd8")
TRL = Package("trl", "1.16.0")
SWIFT = Package("ms-swift", "4.6.0")


def _stage(stage: int) -> str:
    return f"--stage {stage} --precision fp32"


def _file(launcher: str = "torchrun", stage: int = 2) -> Way:
    """Name the ds_config by `--deepspeed FILE`, under zlaunch too."""
    return Way(launcher, f"--deepspeed {{ds}}/stage{stage}.json")


def _instead(stage: int) -> Way:
    """Give zlaunch a stage instead of a file."""
    return Way("torchrun", f"--deepspeed {{ds}}/stage{stage}.json", options=_stage(stage), zlaunch="")


def _accelerate(stage: int) -> Way:
    """Compare with DistributedDataParallel, because accelerate alone does not use DeepSpeed on a CPU."""
    return Way("torchrun", environment={"ACCELERATE_USE_CPU": "true"}, options=_stage(stage))


def _without_cpu(stage: int) -> Way:
    """Leave out `--cpu`, with which accelerate's examples never use DeepSpeed."""
    return Way("torchrun", "--cpu", options=_stage(stage), zlaunch="")


AS_IT_IS = (Way("torchrun"),)
BY_DEEPSPEED = (Way("deepspeed"),)
NEEDS_CUDA = "calls torch.cuda without asking whether there is a GPU"
DDP_ON_A_CPU = {"ACCELERATOR": "cpu", "DEVICES": "2", "STRATEGY": "ddp"}
LIGHTNING_TRAINER = {**DDP_ON_A_CPU, "LIMIT_VAL_BATCHES": "2", "LIMIT_TEST_BATCHES": "2"}

STEPS = "--max_steps 12 --per_device_train_batch_size 2 --learning_rate 1e-2 --logging_steps 2"
TRAINER = f"{STEPS} --output_dir out --save_strategy no --report_to none --use_cpu"
TEXT = "--train_file {data}/train.txt --validation_file {data}/validation.txt"
LOOP = "--per_device_train_batch_size 2 --max_train_steps 12 --learning_rate 1e-2 --output_dir out --seed 1"
TRANSLATION = (
    "--model_name_or_path tiny-t5 --source_lang en --target_lang de "
    "--train_file {data}/translation-train.json --validation_file {data}/translation-validation.json"
)
LM = "examples/pytorch/language-modeling"
GLUE = "examples/pytorch/text-classification"
MRPC = "--model_name_or_path bert-base-cased --task_name mrpc"
CHAT = "applications/DeepSpeed-Chat"


def _trl(script: str, dataset: str, arguments: str, *ways: Way, note: str = "") -> Program:
    arguments = (
        f"--model_name_or_path tiny-llama --dataset_name local/{dataset} {arguments} --bf16 False {TRAINER}"
    )
    return Program("TRL", TRL, f"-m trl.scripts.{script}", arguments, ways, note=note)


PROGRAMS = (
    Program("transformers", TRANSFORMERS, f"{LM}/run_clm.py",
            f"--model_name_or_path tiny-llama {TEXT} --block_size 32 --do_train {TRAINER}",
            (_file(), _file("deepspeed"), _instead(3))),
    Program("transformers", TRANSFORMERS, f"{LM}/run_mlm.py",
            f"--model_name_or_path roberta-base {TEXT} --max_seq_length 32 --do_train {TRAINER}", (_file(),)),
    Program("transformers", TRANSFORMERS, f"{GLUE}/run_glue.py",
            f"{MRPC} --max_seq_length 64 --do_train {TRAINER}", (_instead(3),)),
    Program("transformers", TRANSFORMERS, "examples/pytorch/translation/run_translation.py",
            f"{TRANSLATION} --do_train {TRAINER}", (_file(),)),
    Program("transformers", TRANSFORMERS, f"{LM}/run_clm_no_trainer.py",
            f"--model_name_or_path tiny-llama {TEXT} --block_size 32 {LOOP}", (_accelerate(2),),
            note="asks accelerate for `DistributedType.TPU`, which accelerate 1.15 no longer has"),
    Program("transformers", TRANSFORMERS, f"{GLUE}/run_glue_no_trainer.py",
            f"{MRPC} --max_length 64 {LOOP}", (_accelerate(2), _accelerate(3))),
    Program("transformers", TRANSFORMERS, "examples/pytorch/translation/run_translation_no_trainer.py",
            f"{TRANSLATION} --num_beams 1 --max_target_length 32 {LOOP}", (_accelerate(2),)),
    Program("transformers", TRANSFORMERS, "examples/pytorch/audio-classification/run_audio_classification.py",
            "--model_name_or_path tiny-wav2vec2 --dataset_name local/tiny-speech --train_split_name train "
            "--eval_split_name test --max_length_seconds 1 --do_train --remove_unused_columns False "
            f"--overwrite_output_dir {TRAINER}", (_instead(2),), needs="speech",
            note="with a ds_config without `fp16`, the Trainer makes inputs of 16 bits, and the model fails"),
    Program("accelerate", ACCELERATE, "examples/nlp_example.py", "",
            (Way("torchrun", "--cpu"), _without_cpu(2))),
    Program("accelerate", ACCELERATE, "examples/complete_nlp_example.py", "--output_dir out", (_without_cpu(2),)),
    Program("accelerate", ACCELERATE, "examples/by_feature/deepspeed_with_config_support.py",
            f"--model_name_or_path tiny-opt {TEXT} --block_size 32 {LOOP}", (_accelerate(2), _accelerate(3))),
    Program("accelerate", ACCELERATE, "examples/by_feature/gradient_accumulation.py",
            "--gradient_accumulation_steps 2", (_without_cpu(2),)),
    Program("accelerate", ACCELERATE, "examples/by_feature/multi_process_metrics.py", "", (_without_cpu(3),)),
    Program("accelerate", ACCELERATE, "examples/by_feature/checkpointing.py",
            "--checkpointing_steps epoch --output_dir out", (_without_cpu(2),)),
    Program("accelerate", ACCELERATE, "examples/cv_example.py", "--data_dir {data}/pets", (_without_cpu(2),),
            needs="vision"),
    _trl("sft", "tiny-chat", "--max_length 64", _file(), _instead(3)),
    Program("TRL", TRL, "-m trl.scripts.sft", "--config {ds}/sft.yaml", AS_IT_IS, name="sft --config"),
    _trl("dpo", "tiny-preferences", "--max_length 64", _file()),
    _trl("reward", "tiny-preferences", "--max_length 64", _file()),
    _trl("grpo", "tiny-prompts",
         "--reward_funcs think_format_reward --num_generations 2 --max_completion_length 8", _file(),
         note="random weights earn no reward, so all steps run with a loss of 0"),
    Program("peft", PEFT, "examples/sft/train.py",
            "--model_name_or_path tiny-llama --dataset_name local/tiny-chat --chat_template_format none "
            f"--use_peft_lora True --lora_r 4 --max_length 64 --bf16 False {TRAINER}", (_file(),), name="sft/train"),
    Program("peft", PEFT, "examples/miss_finetuning/miss_finetuning.py",
            "--base_model_name_or_path tiny-llama --bits fp32 --miss_r 8 --data_path tatsu-lab/alpaca "
            f"--dataset_split train --dataset_field instruction output --bf16 False {TRAINER}", (_file(),)),
    Program("peft", PEFT, "examples/olora_finetuning/olora_finetuning.py",
            "--base_model tiny-llama --data_path tatsu-lab/alpaca --device_map cpu --dtype float32 --batch_size 2 "
            "--cutoff_len 64 --lora_r 4 --learning_rate 1e-2 --output_dir out", (_accelerate(2),)),
    Program("DeepSpeedExamples", EXAMPLES, "training/HelloDeepSpeed/train_bert_ds.py",
            "--checkpoint_dir out --num_iterations 12 --log_every 2 --checkpoint_every 100 "
            "--num_layers 2 --num_heads 2 --h_dim 64 --ff_dim 64 --batch_size 4 --max_seq_length 64", BY_DEEPSPEED,
            needs="older"),
    Program("DeepSpeedExamples", EXAMPLES, f"{CHAT}/training/step1_supervised_finetuning/main.py",
            "--data_path Dahoas/rm-static --data_split 2,4,4 --model_name_or_path tiny-opt "
            "--per_device_train_batch_size 2 --per_device_eval_batch_size 2 --max_seq_len 64 --learning_rate 1e-2 "
            "--num_train_epochs 1 --dtype bf16 --zero_stage 2 --data_output_path {run}/data --deepspeed --print_loss",
            BY_DEEPSPEED, needs="older", packages=(f"{CHAT}/dschat",), name="DeepSpeed-Chat step 1"),
    Program("DeepSpeedExamples", EXAMPLES, "training/DeepSpeed-ZenFlow/finetuning/finetune_llama.py",
            "--deepspeed_config {ds}/plain2.json --model_name tiny-llama --lr 1e-3 --batch_size 2 "
            "--num_train_epochs 1 --output_dir out", BY_DEEPSPEED,
            note="trains, and then only rank 0 calls `save_checkpoint`, in which it waits for the other rank"),
    Program("DeepSpeedExamples", EXAMPLES, "training/cifar/cifar10_deepspeed.py",
            "--deepspeed --dtype bf16 --stage 1 --epochs 2 --log-interval 10", BY_DEEPSPEED,
            needs="vision", files={"data": "{data}/cifar"}),
    Program("DeepSpeedExamples", EXAMPLES, "training/pipeline_parallelism/train.py",
            "--deepspeed_config {ds}/pipeline.json -p 2 --steps 8 --backend gloo", BY_DEEPSPEED,
            needs="vision", files={"/tmp/cifar10-data": "{data}/cifar"}, name="pipeline_parallelism/train",  # noqa: S108 - the program's own
            note=NEEDS_CUDA),
    Program("DeepSpeedExamples", EXAMPLES, "training/bf16_master_weight/train.py",
            "--deepspeed_config {ds}/plain1.json --hidden_dim 64 --num_layers 2 --num_heads 4 --vocab_size 200 "
            "--seq_length 32 --num_steps 12 --warmup_steps 1 --learning_rate 1e-2", BY_DEEPSPEED,
            name="bf16_master_weight/train", note=NEEDS_CUDA),
    Program("Lightning", LIGHTNING, "examples/fabric/language_model/train.py", "", AS_IT_IS,
            environment={"LT_CLI_USED": "1", **{f"LT_{name}": value for name, value in DDP_ON_A_CPU.items()}},
            files={"data/wikitext-2.txt": "{data}/wikitext-2.txt"}, name="fabric/language_model"),
    Program("Lightning", LIGHTNING, "examples/pytorch/basics/transformer.py", "", AS_IT_IS,
            environment={f"PL_TRAINER_{name}": value for name, value in LIGHTNING_TRAINER.items()},
            files={"data/wikitext-2.txt": "{data}/wikitext-2.txt"}, name="pytorch/basics/transformer"),
    Program("Lightning", LIGHTNING, "examples/pytorch/basics/transformer.py", "", AS_IT_IS,
            environment={f"PL_TRAINER_{name}": value
                         for name, value in {**LIGHTNING_TRAINER, "STRATEGY": "deepspeed_stage_2"}.items()},
            files={"data/wikitext-2.txt": "{data}/wikitext-2.txt"}, name="transformer, DeepSpeedStrategy",
            note="Lightning's DeepSpeedStrategy accepts only CUDA"),
    Program("ms-swift", SWIFT, "-m swift.cli.sft",
            "--model {models}/tiny-qwen2 --model_type qwen2 --template dummy --dataset {data}/chat.jsonl "
            "--torch_dtype float32 --fp16 false --bf16 false --tuner_type lora --target_modules all-linear --lora_rank 4 "
            f"--max_length 64 {TRAINER}", (_file(),), needs="swift", name="swift sft"),
    Program("nanoGPT", NANOGPT, "train.py",
            "--device=cpu --backend=gloo --compile=False --eval_iters=1 --block_size=32 --batch_size=4 --n_layer=2 "
            "--n_head=2 --n_embd=32 --max_iters=10 --dropout=0.0 --gradient_accumulation_steps=2", AS_IT_IS,
            name="nanoGPT", note="with more than one rank, replaces `--device` by `cuda:N`"),
    Program("minGPT", MINGPT, "projects/adder/adder.py",
            "--trainer.max_iters=40 --trainer.num_workers=0 --trainer.learning_rate=0.003", AS_IT_IS,
            packages=("mingpt",), name="adder"),
    Program("sentence-transformers", SENTENCES,
            "examples/sentence_transformer/training/other/training_batch_hard_trec.py", "", (_accelerate(2),),
            packages=("sentence_transformers",)),
    Program("PyTorch", PYTORCH, "regression/main.py", "", AS_IT_IS, name="regression"),
    Program("PyTorch", PYTORCH, "distributed/ddp-tutorial-series/multigpu_torchrun.py", "2 10", AS_IT_IS, note=NEEDS_CUDA),
)  # fmt: skip

MEASURED = (
    *(
        "run_clm",
        "run_mlm",
        "run_glue",
        "run_glue_no_trainer",
        "run_translation",
        "run_translation_no_trainer",
    ),
    *("run_audio_classification", "nlp_example", "complete_nlp_example", "cv_example"),
    *("trl.scripts.sft", "trl.scripts.dpo", "trl.scripts.reward", "trl.scripts.grpo", "sft/train"),
    *("DeepSpeed-Chat step 1", "swift sft", "training_batch_hard_trec"),
)
"""Titles of the programs whose memory is compared: those that train with DeepSpeed."""
