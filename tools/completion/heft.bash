# bash completion for heft; made by `heft completion bash`
_heft()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options=
    local commands="inspect check plan explain convert verify coordinator serve push status bench completion version help"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "$commands --help --version" -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
        inspect)
            case $prev in
                --filter) COMPREPLY=(); return ;;
            esac
            options="--filter --manifest --json --help"
            COMPREPLY=($(compgen -f -- "$cur"))
            ;;
        check)
            case $prev in
                --recipe) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --let) COMPREPLY=(); return ;;
                --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --rank) COMPREPLY=(); return ;;
            esac
            options="--recipe --let --config --rank --json --help"
            COMPREPLY=($(compgen -f -- "$cur"))
            ;;
        plan)
            case $prev in
                --recipe) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --let) COMPREPLY=(); return ;;
                --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --rank) COMPREPLY=(); return ;;
            esac
            options="--recipe --let --config --rank --pieces --json --help"
            COMPREPLY=($(compgen -f -- "$cur"))
            ;;
        explain)
            case $prev in
                --recipe) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --let) COMPREPLY=(); return ;;
                --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --rank) COMPREPLY=(); return ;;
            esac
            options="--recipe --let --config --rank --json --help"
            COMPREPLY=()
            ;;
        convert)
            case $prev in
                --recipe) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --let) COMPREPLY=(); return ;;
                --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --rank) COMPREPLY=(); return ;;
                --like) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --max-shard-bytes) COMPREPLY=(); return ;;
                --threads) COMPREPLY=(); return ;;
            esac
            options="--recipe --let --config --rank --reverse --like --max-shard-bytes --threads --json --help"
            COMPREPLY=($(compgen -f -- "$cur"))
            ;;
        verify)
            case $prev in
                --recipe) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --let) COMPREPLY=(); return ;;
                --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --rank) COMPREPLY=(); return ;;
                --url) COMPREPLY=(); return ;;
                --deadline) COMPREPLY=(); return ;;
            esac
            options="--recipe --let --config --rank --live --url --deadline --json --help"
            COMPREPLY=($(compgen -f -- "$cur"))
            ;;
        coordinator)
            case $prev in
                --address) COMPREPLY=(); return ;;
                --port) COMPREPLY=(); return ;;
                --state) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --port-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --preflight-ms) COMPREPLY=(); return ;;
                --prepare-ms) COMPREPLY=(); return ;;
                --stage-ms) COMPREPLY=(); return ;;
                --verify-ms) COMPREPLY=(); return ;;
                --pause-ms) COMPREPLY=(); return ;;
                --decide-ms) COMPREPLY=(); return ;;
                --flip-ms) COMPREPLY=(); return ;;
                --resume-ms) COMPREPLY=(); return ;;
                --release-ms) COMPREPLY=(); return ;;
                --abort-ms) COMPREPLY=(); return ;;
                --contact-ms) COMPREPLY=(); return ;;
                --poll-ms) COMPREPLY=(); return ;;
            esac
            options="--address --port --state --port-file --preflight-ms --prepare-ms --stage-ms --verify-ms --pause-ms --decide-ms --flip-ms --resume-ms --release-ms --abort-ms --contact-ms --poll-ms --help"
            ;;
        serve)
            case $prev in
                --url) COMPREPLY=(); return ;;
                --recipe) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --let) COMPREPLY=(); return ;;
                --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --rank) COMPREPLY=(); return ;;
                --replica) COMPREPLY=(); return ;;
                --readers) COMPREPLY=(); return ;;
                --report-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
                --deadline-ms) COMPREPLY=(); return ;;
                --job) COMPREPLY=(); return ;;
                --threads) COMPREPLY=(); return ;;
            esac
            options="--url --recipe --model --let --config --rank --replica --readers --report-file --deadline-ms --job --threads --json --help"
            ;;
        push)
            case $prev in
                --url) COMPREPLY=(); return ;;
                --version) COMPREPLY=(); return ;;
                --wait-for) COMPREPLY=(); return ;;
                --wait-seconds) COMPREPLY=(); return ;;
                --deadline-ms) COMPREPLY=(); return ;;
                --job) COMPREPLY=(); return ;;
                --threads) COMPREPLY=(); return ;;
            esac
            options="--url --version --wait-for --wait-seconds --deadline-ms --job --threads --json --help"
            COMPREPLY=($(compgen -f -- "$cur"))
            ;;
        status)
            case $prev in
                --url) COMPREPLY=(); return ;;
            esac
            options="--url --watch --json --help"
            ;;
        bench)
            case $prev in
                --bytes) COMPREPLY=(); return ;;
                --runs) COMPREPLY=(); return ;;
                --only) COMPREPLY=(); return ;;
                --threads) COMPREPLY=(); return ;;
            esac
            options="--bytes --runs --only --threads --json --help"
            ;;
        completion)
            case $prev in
            esac
            options="--help"
            COMPREPLY=($(compgen -W "bash" -- "$cur"))
            ;;
        version)
            case $prev in
            esac
            options="--json --help"
            ;;
        help)
            case $prev in
            esac
            options="--help"
            COMPREPLY=($(compgen -W "$commands" -- "$cur"))
            ;;
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    fi
}
complete -o filenames -F _heft heft
