//! The node that is a container's kernel: what it is to be, by the container's configuration.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use insula_abi::GRANULE;
use insula_base::error::Error;
use insula_base::units::{CpuList, Size};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_image::{Bootable, Files, Opened, Payload, open_any};
use insula_node::memory::MemorySpec;
use insula_node::policy::OnHang;
use insula_node::{Attachments, HostName, Label, NetworkSpec, NodeSpec, RunRequest, Source};
use kimage::Format;
use serde::{Deserialize, Serialize};

use super::config::{Config, CpuLimit, Kernel, Resources};
use super::pod_limits;

/// Image of nodes of which nothing else is said.
pub(super) const IMAGE: &str = "container";
/// Annotations: the node's image, cores, memory and isolation, as options of `insula run`.
const PREFIX: &str = "run.insula.";
/// Key of the label that has the container's id.
const LABEL: &str = "oci";
/// Length of an id that podman and Docker make, and of the part of it that they show.
const LONG_ID: usize = 64;
const SHORT_ID: usize = 12;

/// The name of a container's node.
pub(super) fn name(id: &str) -> Result<Name, Error> {
    let is_long = id.len() == LONG_ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = if is_long { &id[..SHORT_ID] } else { id };
    name.parse().map_err(|source| {
        Error::new(format!("no node can be called as the container '{id}'"))
            .because(source)
            .untouched()
    })
}

/// The label of a container's node.
pub(super) fn label(id: &str) -> Label {
    Label {
        key: LABEL.to_owned(),
        value: id.to_owned(),
    }
}

/// What a container's node of this kind is to be. It has this root.
pub(super) fn spec(
    config: &Config,
    (id, kind): (&str, NodeKind),
    rootfs: &Path,
) -> Result<NodeSpec, Error> {
    let annotation = |key: &str| annotation(config, key);
    let mut spec = NodeSpec {
        image: image(config)?,
        rootfs: Some(rootfs.to_owned()),
        network: match Network::of(config) {
            Network::None => NetworkSpec::None,
            _ => NetworkSpec::Default,
        },
        label: vec![label(id)],
        on_hang: OnHang::Stop,
        no_reboot: true,
        ..NodeSpec::default()
    };
    if let Some(kernel) = &config.vm.kernel {
        spec.append = kernel.parameters.join(" ");
    }
    // A copy has the size and the isolation of its original.
    let is_copy = kind == NodeKind::Copy;
    let size = if is_copy {
        NodeSize::default()
    } else {
        NodeSize::of(&config.linux.resources).or(NodeSize::of(&pod_limits::of(config)))
    };
    match annotation("cpus") {
        // A list, or the number of them.
        Some(text) if text.contains(['-', ',']) => {
            spec.cpu_list = Some(parse::<CpuList>("cpus", text)?);
        }
        Some(text) => spec.cpus = Some(parse("cpus", text)?),
        None => spec.cpus = size.cpus,
    }
    if let Some(text) = annotation("max-cpus") {
        spec.max_cpus = Some(parse("max-cpus", text)?);
    }
    match (annotation("memory"), size.memory) {
        (Some(text), _) => spec.memory = vec![parse("memory", text)?],
        (None, Some(size)) => spec.memory = vec![memory(size)],
        (None, None) => {}
    }
    if let Some(text) = annotation("isolation") {
        let isolation = serde_json::from_value(text.as_str().into());
        spec.isolation = isolation.map_err(|source| refused("isolation", text).because(source))?;
    }
    // It is called as its node, which the container need not see.
    if !config.hostname.is_empty() && !is_copy {
        spec.hostname = Some(parse::<HostName>("hostname", &config.hostname)?);
    }
    Ok(spec)
}

/// What a container's node is, by its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum NodeKind {
    /// A Linux node that boots.
    #[default]
    Linux,
    /// A copy of one, from a snapshot.
    Copy,
    /// A node of the lightweight kernel.
    Lightweight,
}

impl NodeKind {
    /// That of nodes of this image.
    ///
    /// # Errors
    /// When the image is not found, or cannot be read.
    pub(super) fn of(driver: &Driver, image: Option<&Name>) -> Result<Self, Error> {
        let Some(image) = image else {
            return Ok(Self::Linux);
        };
        if let Ok(Opened::Snapshot(_)) = open_any(driver, image) {
            return Ok(Self::Copy);
        }
        let found = Bootable::of_image(driver, image)?;
        Ok(match found.loadable.format {
            Format::Lwk => Self::Lightweight,
            _ => Self::Linux,
        })
    }
}

/// The image of a container's node, if the container does not come with a kernel.
pub(super) fn image(config: &Config) -> Result<Option<Name>, Error> {
    match (&config.vm.kernel, annotation(config, "image")) {
        (Some(_), None) => Ok(None),
        (None, image) => Ok(Some(parse("image", image.map_or(IMAGE, String::as_str))?)),
        (Some(_), Some(_)) => Err(two_kernels()),
    }
}

fn annotation<'a>(config: &'a Config, key: &str) -> Option<&'a String> {
    config.annotations.get(&format!("{PREFIX}{key}"))
}

/// The request to start a container's node.
pub(super) fn request(
    spec: &NodeSpec,
    kernel: Option<&Kernel>,
    name: &Name,
) -> Result<RunRequest, Error> {
    let from_files = kernel.map(|kernel| {
        let files = Files {
            kernel: kernel.path.clone(),
            initrd: kernel.initrd.clone(),
        };
        Source::Files(files, Payload::default())
    });
    let source = from_files.or_else(|| spec.image.clone().map(Source::Image));
    if let Some(error) = spec.check().err().into_iter().flatten().next() {
        return Err(error);
    }
    Ok(RunRequest {
        source: source.ok_or_else(|| Error::new("the container has no kernel").untouched())?,
        name: Some(name.clone()),
        cores: spec.cores(),
        attachments: Attachments::find(spec)?,
        spec: spec.clone(),
        described: None,
        remove: false,
        is_created: false,
        is_attached: false,
    })
}

/// The network of a container, by its network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Network {
    /// A new one: nobody has connected it to anything.
    None,
    /// None: no kernel can share the base's, so it is that of nodes.
    OfNodes,
    /// One that an engine has made, and connected: that of this path.
    OfAnEngine(PathBuf),
}

impl Network {
    pub(super) fn of(config: &Config) -> Self {
        let mut all = config.linux.namespaces.iter();
        let found = all.find(|namespace| namespace.kind == "network");
        match found.map(|namespace| &namespace.path) {
            None => Self::OfNodes,
            Some(path) if path.as_os_str().is_empty() => Self::None,
            Some(path) => Self::OfAnEngine(path.clone()),
        }
    }
}

/// A node's size, as limits say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSize {
    pub(super) cpus: Option<u32>,
    pub(super) memory: Option<Size>,
}

impl NodeSize {
    /// That of a node whose container has these limits.
    pub(super) fn of(limits: &Resources) -> Self {
        let bytes = limits.memory.limit.filter(|&limit| limit > 0);
        let size = |bytes: u64| Size(bytes.div_ceil(GRANULE).saturating_mul(GRANULE));
        Self {
            cpus: cores(&limits.cpu),
            memory: bytes.map(|bytes| size(bytes.unsigned_abs())),
        }
    }

    /// What is not said is that of another size.
    fn or(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.or(other.cpus),
            memory: self.memory.or(other.memory),
        }
    }
}

/// The cores for a limit of processor time: as many as it fills, the last one perhaps in part.
fn cores(limit: &CpuLimit) -> Option<u32> {
    let (quota, period) = limit.time()?;
    let quota = u64::try_from(quota).ok().filter(|&quota| quota > 0)?;
    u32::try_from(quota.div_ceil(period)).ok()
}

fn memory(size: Size) -> MemorySpec {
    MemorySpec {
        size,
        ..MemorySpec::default()
    }
}

fn parse<T>(key: &str, text: &str) -> Result<T, Error>
where
    T: FromStr<Err: Into<insula_base::error::Source>>,
{
    text.parse()
        .map_err(|source: T::Err| refused(key, text).because(source))
}

fn refused(key: &str, text: &str) -> Error {
    let what = match key {
        "hostname" => format!("the host name '{text}' cannot be a node's"),
        _ => format!("the annotation `{PREFIX}{key}={text}` cannot be understood"),
    };
    Error::new(what).untouched()
}

fn two_kernels() -> Error {
    let what = format!("the container has both `vm.kernel` and the annotation `{PREFIX}image`");
    Error::new(what).untouched().hint("leave one of them out")
}

#[cfg(test)]
mod tests {
    use insula_node::cores::CoreRequest;
    use insula_node::isolation::Isolation;
    use serde_json::{Value, json};

    use super::*;

    fn of(config: Value) -> Result<NodeSpec, Error> {
        let config = serde_json::from_value(config).unwrap();
        spec(&config, ("web", NodeKind::Linux), Path::new("/srv"))
    }

    fn alone(mut config: Value) -> NodeSpec {
        config["linux"]["namespaces"] = json!([{"type": "network"}]);
        of(config).unwrap()
    }

    #[test]
    fn limits_are_cores_and_memory() {
        let of_limits = |cpu: Value, memory: Value| {
            let resources = json!({"cpu": cpu, "memory": {"limit": memory}});
            let spec = alone(json!({"linux": {"resources": resources}}));
            (spec.cores(), spec.memory_size() >> 20)
        };
        let count = CoreRequest::Count;
        assert_eq!(of_limits(Value::Null, Value::Null), (count(1), 512));
        assert_eq!(of_limits(json!({"quota": -1}), json!(-1)), (count(1), 512));
        let half = json!({"quota": 50_000, "period": 100_000});
        assert_eq!(of_limits(half, json!(1_000_000)), (count(1), 2));
        let more = json!({"quota": 250_000, "period": 100_000});
        assert_eq!(of_limits(more, json!(256 << 20)), (count(3), 256));
        let none = json!({"quota": 1, "period": 0});
        assert_eq!(of_limits(none, json!(i64::MAX)).0, count(1));
    }

    #[test]
    fn limits_of_a_pod_count_less() {
        let annotations = json!({
            "io.kubernetes.cri.sandbox-cpu-quota": "250000", "io.kubernetes.cri.sandbox-cpu-period": "100000",
            "io.kubernetes.cri.sandbox-memory": "67108864",
        });
        let with = |resources: Value| {
            let linux = json!({"resources": resources});
            let spec = alone(json!({"annotations": annotations, "linux": linux}));
            (spec.cores(), spec.memory_size() >> 20)
        };
        assert_eq!(with(json!({})), (CoreRequest::Count(3), 192));
        let own = json!({"cpu": {"quota": 1}, "memory": {"limit": 256 << 20}});
        assert_eq!(with(own), (CoreRequest::Count(1), 256));
    }

    #[test]
    fn annotations_count_more() {
        let spec = alone(json!({
            "hostname": "shop",
            "annotations": {
                "run.insula.image": "own", "run.insula.cpus": "2,3", "run.insula.memory": "64M",
                "run.insula.isolation": "vmm", "other": "x",
            },
            "linux": {"resources": {"memory": {"limit": 1 << 30}}},
        }));
        assert_eq!(spec.cores(), CoreRequest::List(CpuList(vec![2, 3])));
        assert_eq!(
            (spec.memory_size(), spec.isolation),
            (64 << 20, Isolation::Vmm)
        );
        assert_eq!(spec.image, Some("own".parse().unwrap()));
        assert_eq!(spec.hostname.unwrap().as_str(), "shop");
        assert!(!spec.network.is_some());
    }

    #[test]
    fn a_kernel_can_be_given() {
        let kernel = json!({"path": "/k", "parameters": ["quiet", "panic=1"], "initrd": "/i"});
        let spec = alone(json!({"vm": {"kernel": kernel}}));
        assert_eq!((spec.image, spec.append.as_str()), (None, "quiet panic=1"));
        assert_eq!(alone(json!({})).image, Some(IMAGE.parse().unwrap()));
    }

    #[test]
    fn networks_are_those_of_namespaces() {
        let with = |namespaces: Value| {
            of(json!({"linux": {"namespaces": namespaces}}))
                .unwrap()
                .network
                .is_some()
        };
        assert!(with(json!(null)));
        assert!(with(json!([{"type": "pid"}])));
        assert!(!with(json!([{"type": "network", "path": ""}])));
        assert!(with(json!([{"type": "network", "path": "/run/netns/x"}])));
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for (key, value) in [
            ("image", "a/b"),
            ("cpus", "some"),
            ("cpus", "1-"),
            ("max-cpus", "1,2"),
            ("memory", "3M"),
            ("isolation", "none"),
        ] {
            let config = json!({
                "annotations": {format!("run.insula.{key}"): value},
                "linux": {"namespaces": [{"type": "network"}]},
            });
            let error = of(config).unwrap_err();
            assert!(error.what.contains(key), "{error}");
        }
    }

    #[test]
    fn nodes_are_called_as_podman_shows_containers() {
        let long = "0123456789abcdef".repeat(4);
        assert_eq!(name(&long).unwrap().as_str(), "0123456789ab");
        assert_eq!(name("web_1").unwrap().as_str(), "web_1");
        for bad in ["", "a+b", &"x".repeat(64), "../x"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
