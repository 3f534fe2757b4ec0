//! The pages whose examples are run, and the situation of each.

use super::{Example, PLAIN, Typed};

/// A page of the documentation, and its examples in their order.
pub(super) struct Page {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) examples: &'static [Example],
}

/// A shell's prompt, at which it is left.
const EXIT: Typed = &[("# ", "exit\r")];
/// An image of a kernel, and one with an agent.
const IMAGE: &str = "insula image add debian --installed 6.12";
const BUILT: &str = "insula image build debian --installed 6.12 --content /srv/debian";

pub(super) const PAGES: &[Page] = &[
    Page {
        name: "README.md",
        text: include_str!("../../../../../../README.md"),
        examples: &[
            PLAIN,
            Example {
                goes_on: true,
                ..PLAIN
            },
            Example {
                retried: &["--mount"],
                ..PLAIN
            },
            Example {
                typed: &[("insula exec -it", EXIT)],
                ..PLAIN
            },
            Example {
                left_out: &[(
                    "insula",
                    "moves take CRIU: move_linux, move_base and upgrade play them",
                )],
                ..PLAIN
            },
        ],
    },
    Page {
        name: "guide.md",
        text: include_str!("../../../../../../docs/src/guide.md"),
        examples: &[
            PLAIN,
            PLAIN,
            Example {
                before: IMAGE,
                ..PLAIN
            },
            Example {
                before: BUILT,
                ..PLAIN
            },
            Example {
                before: IMAGE,
                ..PLAIN
            },
            Example {
                left_out: &[(
                    "--device",
                    "it takes functions at these addresses: devices plays them",
                )],
                ..PLAIN
            },
            PLAIN,
            PLAIN,
            Example {
                before: "insula run --image lwk --memory 64M --name quiet",
                typed: &[("insula top", &[("quiet", "q")])],
                ..PLAIN
            },
            Example {
                before: IMAGE,
                ..PLAIN
            },
        ],
    },
    Page {
        name: "containers.md",
        text: include_str!("../../../../../../docs/src/containers.md"),
        examples: &[
            Example {
                typed: &[("insula console", EXIT)],
                ..PLAIN
            },
            Example {
                before: BUILT,
                typed: &[
                    ("run -it", EXIT),
                    ("echo $?", &[("# ", "exit 3\r")]),
                    ("insula attach", &[("# ", "\x10\x11")]),
                ],
                ..PLAIN
            },
            Example {
                before: "insula image build debian --installed 6.12
                         insula run --image debian --rootfs /srv/web --network --name web",
                followed: &["logs -f"],
                ..PLAIN
            },
            Example {
                before: BUILT,
                after: "insula rm --force shop",
                ..PLAIN
            },
            Example {
                before: "insula image build debian --installed 6.12
                         insula run --image debian --rootfs /srv/web --name web
                         insula run --image debian --rootfs /srv/web --name copy",
                after: "rm -r /srv/site /srv/www",
                ..PLAIN
            },
            Example {
                before: BUILT,
                after: "insula rm --force db; insula network rm back",
                ..PLAIN
            },
            Example {
                before: "insula image build debian --installed 6.12
                         mkfs.erofs -Enoinline_data debian.erofs /srv/debian",
                after: "insula rm --force web; rm debian.erofs",
                ..PLAIN
            },
            Example {
                before: "insula image build debian --installed 6.12",
                ..PLAIN
            },
            Example {
                before: "insula image build debian --installed 6.12",
                ..PLAIN
            },
        ],
    },
    Page {
        name: "compose.md",
        text: include_str!("../../../../../../docs/src/compose.md"),
        examples: &[
            Example {
                before: PROJECT,
                after: "insula down",
                ..PLAIN
            },
            Example {
                before: "insula image add debian --installed 6.12
                         insula run --image debian --cpu-list 3 --memory 128M --name other",
                refused: &["insula up"],
                ..PLAIN
            },
            Example {
                before: "insula up",
                ..PLAIN
            },
            Example {
                before: "mkdir -p /etc/insula
                         cp insula.toml vmlinux initrd.img /etc/insula",
                after: "rm -r /etc/insula",
                ..PLAIN
            },
        ],
    },
];

/// The project that the page describes, with kernels that say when they are ready.
const PROJECT: &str = concat!(
    "for kernel in /boot/vmlinuz-*; do ln -sf /run/documented/ready.cpio /boot/initrd.img-${kernel#/boot/vmlinuz-}; done\n",
    "cp ready.cpio initrd.img\n",
    "cat > insula.toml <<'END'\n",
    include_str!("../../../../../../docs/src/insula.toml"),
    "\nEND\n"
);
