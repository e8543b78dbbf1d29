#!/usr/bin/env bash
# gotool.sh helm|kubeconform: prints where that program is; one that is missing is built from its Go module, once, into the
# cache. Where they can be installed in the usual ways nobody needs this.
set -euo pipefail
tool=$1
command -v "$tool" && exit
case $tool in
    helm) module=helm.sh/helm/v3 version=v3.22.0 package=cmd/helm flags="-X helm.sh/helm/v3/internal/version.version=v3.22.0" ;;
    kubeconform) module=github.com/yannh/kubeconform version=v0.8.0 package=cmd/kubeconform flags= ;;
    *) echo "gotool.sh: no such tool: $tool" >&2 && exit 2 ;;
esac
home=${XDG_CACHE_HOME:-$HOME/.cache}/penstock/$tool-$version
if [[ ! -x $home/$tool ]]; then
    mkdir -p "$home/build"
    cd "$home/build"
    # A module around it: go install refuses modules that replace others.
    printf 'module %s_build\n\ngo 1.26.0\n' "$tool" >go.mod
    go get "$module@$version" "$module/$package@$version" >&2
    CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w $flags" -o "$home/$tool.part" "$module/$package" >&2
    mv "$home/$tool.part" "$home/$tool"
    cd "$home" && rm -rf build
fi
echo "$home/$tool"
