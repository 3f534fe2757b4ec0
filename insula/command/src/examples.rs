//! Examples for the manual pages.

/// An example of a command.
pub(super) struct Example {
    /// What it does.
    pub(super) what: &'static str,
    /// The command lines.
    pub(super) lines: &'static [&'static str],
}

impl Example {
    /// Names of the pages of the commands that it uses, as `insula-image-add`.
    pub(super) fn pages(&self) -> impl Iterator<Item = String> {
        self.lines.iter().filter_map(|line| {
            let words = line.split(' ');
            let command: Vec<_> = words.take_while(|word| !word.starts_with('-')).collect();
            let known = ALL.iter().map(|(page, _)| *page);
            let name = command.join("-");
            let pages = known.filter(|page| name == *page || name.starts_with(&format!("{page}-")));
            pages.max_by_key(|page| page.len()).map(str::to_owned)
        })
    }
}

/// Examples for the page of that name.
pub(super) fn of(page: &str) -> &'static [Example] {
    let found = ALL.iter().find(|(name, _)| *name == page);
    found.map_or(&[], |(_, examples)| examples)
}

macro_rules! examples {
    ($($page:literal: { $($what:literal => [$($line:literal),+ $(,)?]),+ $(,)? })+) => {
        /// Examples by the name of the page.
        const ALL: &[(&str, &[Example])] = &[$((
            $page,
            &[$(Example { what: $what, lines: &[$($line),+] }),+],
        )),+];
    };
}

examples! {
    "insula": {
        "Start a node of an installed kernel, show it, and stop it" => [
            "insula machine check",
            "insula image add debian --installed 6.12",
            "insula run --image debian --name web --cpus 2 --memory 512M",
            "insula ps",
            "insula logs --follow web",
            "insula stop web",
            "insula rm web",
        ],
    }
    "insula-servers": {
        "Serve files from the second core of a node, then from its third" => [
            "insula run --image lwk --cpus 3 --name quiet",
            "insula servers start quiet file --cpus 1 -- insula-files memory --size 64M",
            "insula exec --mount /data=file quiet -- cp -r /etc/apt /data",
            "insula servers move quiet file 2",
            "insula servers ls",
        ],
    }
    "insula-servers-ls": {
        "Show in a script how much the servers of a node have to do" => [
            "insula servers ls --json quiet",
        ],
    }
    "insula-servers-start": {
        "Serve files in memory from a core of their own" => [
            "insula servers start quiet file --cpus 1 -- insula-files memory --size 64M",
        ],
        "Serve them from the core of 1 to 3 that suits best, whatever these have to do" => [
            "insula servers start quiet file --cpus 1-3 --place auto -- insula-files memory",
        ],
        "Serve the sockets of programs by a network card of their node" => [
            "insula run --image lwk --cpus 2 --device 0000:01:00.0 --name quiet",
            "insula servers start quiet net --cpus 0 -- insula-network --device virtio:0000:01:00.0",
            "insula exec --net net quiet -- redis-server --bind 0.0.0.0 --protected-mode no",
        ],
    }
    "insula-servers-move": {
        "Put a server onto two other cores" => ["insula servers move quiet file 2-3"],
    }
    "insula-servers-restart": {
        "Start a server anew" => ["insula servers restart quiet file"],
    }
    "insula-servers-stop": {
        "Stop a server" => ["insula servers stop quiet file"],
    }
    "insula-servers-logs": {
        "Show why a server does not start" => ["insula servers logs quiet file"],
    }
    "insula-machine": {
        "Check the machine, and show what is in use" => [
            "insula machine check",
            "insula machine info",
        ],
    }
    "insula-machine-check": {
        "Check in a script" => ["insula machine check --json"],
    }
    "insula-machine-info": {
        "Show who has which cores and memory" => ["insula machine info"],
    }
    "insula-machine-reserve": {
        "Reserve two cores and 1 GiB" => [
            "insula machine reserve --cpus 2 --memory 1G",
            "insula run --image debian --cpus 2 --memory 1G",
        ],
        "Reserve certain cores, and memory of the second NUMA node" => [
            "insula machine reserve --cpu-list 4-7 --memory 2G,numa=1",
        ],
    }
    "insula-machine-release": {
        "Release what is not in use" => ["insula machine release"],
    }
    "insula-image": {
        "Make two kernels resident" => [
            "insula image add old --installed 6.1",
            "insula image add new --installed 6.12",
            "insula image ls",
        ],
    }
    "insula-image-add": {
        "An installed kernel" => ["insula image add debian --installed 6.12"],
        "A kernel of your own" => [
            "insula image add own --kernel bzImage --initrd initrd.img --append quiet",
        ],
    }
    "insula-image-build": {
        "A node with all drivers and your own programs" => [
            "insula image build debian --installed 6.12 --content ./content",
            "insula run --image debian --name web -- /bin/server --port 80",
        ],
    }
    "insula-image-ls": {
        "List resident images" => ["insula image ls"],
    }
    "insula-image-inspect": {
        "Show everything about an image" => ["insula image inspect debian"],
    }
    "insula-image-save": {
        "Keep an image beyond the next boot" => [
            "insula image save debian --output debian.image",
        ],
    }
    "insula-image-load": {
        "Make a saved image resident" => [
            "insula image load --input debian.image",
            "insula image load --input debian.image --name other",
        ],
    }
    "insula-image-rm": {
        "Free the memory of an image" => ["insula image rm debian"],
    }
    "insula-network": {
        "A database that only the nodes of its network reach, and a server on it" => [
            "insula network create back --internal",
            "insula run --image debian --network back --name db",
            "insula run --image debian --network back --name web",
            "insula network ls",
        ],
    }
    "insula-network-create": {
        "Choose its addresses" => ["insula network create front --subnet 172.20.0.0/16"],
    }
    "insula-network-ls": {
        "Show which nodes are on which network" => ["insula network ls"],
    }
    "insula-network-inspect": {
        "Show in a script who is on a network" => ["insula network inspect back"],
    }
    "insula-network-rm": {
        "Remove a network" => ["insula network rm back"],
    }
    "insula-network-prune": {
        "Remove all networks without nodes" => ["insula network prune"],
    }
    "insula-snapshot": {
        "A node that has booted, and two copies of it" => [
            "insula run --image debian --isolation vmm --name first",
            "insula snapshot first ready",
            "insula run --image ready --name second",
            "insula run --image ready --name third",
        ],
    }
    "insula-run": {
        "Two cores and 512 MiB" => [
            "insula run --image debian --name web --cpus 2 --memory 512M",
        ],
        "Certain cores, and memory from both sides of 4 GiB" => [
            "insula run --image debian --cpu-list 4-5 --memory 256M,below=4G --memory 1G",
        ],
        "Run one program of this system on cores of its own" => [
            "insula run --image lwk --cpus 2 --memory 256M -- python3 -c 'print(6 * 7)'",
        ],
        "Work in a node with this system's files, of which nothing changes" => [
            "insula run -it --rm --rootfs / --overlay debian bash",
        ],
        "Add to the kernel command line" => ["insula run --image debian --append quiet"],
        "Have its supervisor watch it, and start it again when it has an oops" => [
            "insula run --image debian --watch all --watch oops=restart",
        ],
    }
    "insula-create": {
        "Check a node now, and start it later" => [
            "insula create --image debian --name web --cpus 2 --memory 512M",
            "insula start web",
        ],
    }
    "insula-stats": {
        "Count system calls of programs on the lightweight kernel" => [
            "insula stats",
            "insula stats quiet --json",
        ],
        "For a Prometheus node exporter's textfile collector" => [
            "insula stats --prometheus",
        ],
    }
    "insula-top": {
        "Watch nodes; the arrow keys select whose calls are shown, q quits" => ["insula top"],
    }
    "insula-ps": {
        "List all nodes, also stopped ones" => ["insula ps --all"],
        "Names of the nodes that run, and a line of one's own for each" => [
            "insula ps -q --filter state=running",
            "insula ps --format {{.Names}}:{{.State}}",
        ],
    }
    "insula-wait": {
        "Wait for the end of a container, and print its status" => ["insula wait shop"],
    }
    "insula-port": {
        "Show where port 80 of a container is" => ["insula port shop 80"],
    }
    "insula-version": {
        "Show in a script what module is loaded" => ["insula version --json"],
    }
    "insula-inspect": {
        "Show everything about a node" => ["insula inspect web"],
    }
    "insula-exec": {
        "Run programs in a Linux node whose image has an agent" => [
            "insula exec web -- uname -a",
            "insula exec --interactive --tty web -- bash",
        ],
        "Run one in namespaces of its own, by a name" => [
            "insula exec --container shop --detach web -- /usr/sbin/nginx -g 'daemon off;'",
            "insula logs --follow shop",
        ],
        "Run a program of this system on a node's cores" => [
            "insula run --image lwk --name quiet --cpus 2 --memory 256M",
            "insula exec quiet -- python3 -c 'print(sum(range(10**7)))'",
        ],
    }
    "insula-cp": {
        "A file out of a node, and a folder into it" => [
            "insula cp web:/etc/nginx/nginx.conf .",
            "insula cp ./site web:/srv",
        ],
        "The content of a folder, from one node to another" => [
            "insula cp web:/srv/site/. copy:/srv/site",
        ],
    }
    "insula-move": {
        "Move a server that runs already" => [
            "insula run --image lwk --name quiet --cpus 2 --memory 512M",
            "insula move --check 1234 quiet",
            "insula move 1234 quiet",
        ],
        "Move a container to a node with another kernel" => [
            "insula move --check shop two",
            "insula move shop two",
        ],
    }
    "insula-upgrade": {
        "Change the kernel under the containers of a node" => [
            "insula image build new --installed 6.12 --criu",
            "insula upgrade --check web --image new",
            "insula upgrade web --image new",
        ],
    }
    "insula-checkpoint": {
        "Keep a container in a folder, and have it go on from there on another node" => [
            "insula checkpoint shop --export /srv/shop",
            "insula restore two --import /srv/shop",
        ],
        "Have a copy of it beside" => [
            "insula checkpoint shop --leave-running --export /srv/copy",
            "insula restore two --import /srv/copy --name copy --tcp-close",
        ],
    }
    "insula-restore": {
        "Restore processes that plain CRIU has dumped" => [
            "insula restore two --import /srv/dumped --name dumped",
        ],
    }
    "insula-policy": {
        "Try the policies of insula.toml, then have them move programs" => [
            "insula policy run --dry-run",
            "insula policy run",
        ],
    }
    "insula-policy-run": {
        "Tell what the policy `shop` would do, and why" => ["insula policy run --dry-run shop"],
    }
    "insula-policy-record": {
        "Record the load of a day" => ["timeout 1d insula policy record > day.trace"],
    }
    "insula-policy-simulate": {
        "Compare the policies with the best that could have been done on that day" => [
            "insula policy simulate --trace day.trace",
        ],
    }
    "insula-attach": {
        "Type to the program of a node; ctrl-p ctrl-q leaves it" => [
            "insula run --image debian --rootfs / --overlay --interactive --tty --name shell -- bash",
            "insula attach shell",
        ],
        "Only see what it prints" => ["insula attach --no-stdin --sig-proxy=false shell"],
    }
    "insula-console": {
        "A shell in a Linux node" => ["insula console web"],
    }
    "insula-stop": {
        "Give a node a minute to power off" => ["insula stop --time 60 web"],
    }
    "insula-kill": {
        "Have nginx in a container read its configuration again" => [
            "insula kill --signal HUP shop",
        ],
        "Kill a node that does not react" => ["insula kill web", "insula logs --tail 20 web"],
    }
    "insula-pause": {
        "Look at a node while nothing in it changes" => [
            "insula pause tenant", "insula dump tenant", "insula resume tenant",
        ],
    }
    "insula-resume": {
        "Have a paused node go on" => ["insula resume tenant"],
    }
    "insula-start": {
        "Start all nodes again that have stopped" => ["insula start --all"],
    }
    "insula-rename": {
        "Give a node another name" => ["insula rename web shop"],
    }
    "insula-restart": {
        "Start a node again, with the image as it is now" => ["insula restart web"],
    }
    "insula-update": {
        "Add a core and 256 MiB to a running node" => [
            "insula run --image debian --name web --cpus 1 --max-cpus 4 --memory 512M",
            "insula update web --cpus +1 --memory +256M",
        ],
        "Back to one core" => ["insula update web --cpus 1"],
    }
    "insula-supervise": {
        "Start a new supervisor for all nodes that have lost theirs" => ["insula supervise"],
    }
    "insula-rm": {
        "Remove a node, running or not" => ["insula rm --force web"],
    }
    "insula-prune": {
        "Remove all nodes that have stopped, but only those of a project" => [
            "insula prune --filter label=project=shop",
        ],
    }
    "insula-image-prune": {
        "Remove all images of which there is no node" => ["insula image prune"],
    }
    "insula-logs": {
        "Follow the kernel log of a node" => ["insula logs --follow web"],
        "Show the last lines of the log" => ["insula logs --tail 20 web"],
        "Show what was written in the last ten minutes, and when" => ["insula logs --since 10m -t web"],
    }
    "insula-up": {
        "Start what insula.toml describes" => ["insula up"],
        "Only check, and show what would be done" => [
            "insula up --file shop/insula.toml --dry-run",
        ],
        "All files of a folder together" => ["insula up --file /etc/insula"],
    }
    "insula-down": {
        "Stop and remove what insula.toml describes, and its images" => ["insula down --images"],
        "Stop and remove a project whose file is lost" => ["insula down --project shop"],
    }
    "insula-dump": {
        "Store a dump of a node, and list the dumps" => [
            "insula dump web",
            "insula dump ls",
        ],
        "Write a dump of a hanging node, with its registers, to a file" => [
            "insula dump --nmi --output web.vmcore web",
        ],
    }
    "insula-postmortem": {
        "Print what survived a reset" => ["insula postmortem"],
    }
    "insula-dump-ls": {
        "List the dumps, oldest first" => ["insula dump ls"],
    }
    "insula-dump-rm": {
        "Remove a dump" => ["insula dump rm web-20261120T093000Z.vmcore"],
    }
    "insula-backtrace": {
        "Show where a node hangs" => ["insula backtrace web"],
    }
    "insula-debug": {
        "For gdb on this machine" => ["insula debug web"],
        "For any user of this machine" => ["insula debug --port 1234 web"],
    }
    "insula-watch": {
        "Watch a node, and have it restarted when it panics" => ["insula watch --on panic=restart web"],
        "See whether something is wrong with this system's kernel now" => ["insula watch --once base"],
        "Undo what it has repaired last" => ["insula watch --undo web"],
        "With own limits, for another program to read" => [
            "insula watch --rules watch.toml --json web",
        ],
    }
    "insula-events": {
        "See what happens from now on" => ["insula events"],
        "What has happened to a node in the last hour, for another program to read" => [
            "insula events --since 1h --no-stream --json web",
        ],
    }
    "insula-completion": {
        "For this session of Bash" => ["source <(insula completion bash)"],
        "For all of Fish" => [
            "insula completion fish > /etc/fish/completions/insula.fish",
        ],
    }
}

#[cfg(test)]
mod tests;
