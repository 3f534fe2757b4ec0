# git commits $1 files in each of four commits, packs, checks and clones the repository.
export HOME="$PWD" GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=author GIT_AUTHOR_EMAIL=author@localhost GIT_AUTHOR_DATE='2026-01-01T00:00Z'
export GIT_COMMITTER_NAME=author GIT_COMMITTER_EMAIL=author@localhost
export GIT_COMMITTER_DATE='2026-01-01T00:00Z'

git init --quiet --initial-branch main repository
cd repository
for commit in 1 2 3 4; do
	mkdir "folder$commit"
	for file in $(seq "$1"); do
		# Files that resemble each other, which are stored as differences.
		seq "$commit" $((file % 50 + 40)) > "folder$commit/file$file"
	done
	git add .
	git commit --quiet --message "commit $commit"
done
git gc --quiet --prune=now
git fsck --full --strict
git clone --quiet --no-local . ../clone
cd ../clone
git log --format='%H %s'
git status --porcelain
git rev-list --all --objects | sha256sum
git fsck --full --strict
git count-objects --verbose | grep -E 'count|in-pack|packs|garbage'
find . -path ./.git -prune -o -type f -print0 | sort --zero-terminated | xargs -0 sha256sum | sha256sum
