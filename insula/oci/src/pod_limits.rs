//! Limits of a whole pod, as Kubernetes' engines tell them for its sandbox: the sum of those of its containers, which are
//! not there yet when the sandbox gets its node.

use serde::Deserialize;

use super::config::{Config, CpuLimit, MemoryLimit, PidsLimit, Resources};

/// containerd's annotations (`pkg/cri/annotations`, 1.6.7 and later): processor time in microseconds, memory in bytes.
const QUOTA_US: &str = "io.kubernetes.cri.sandbox-cpu-quota";
const PERIOD_US: &str = "io.kubernetes.cri.sandbox-cpu-period";
const MEMORY_BYTES: &str = "io.kubernetes.cri.sandbox-memory";
/// Those of CRI-O, each an object of the runtime interface (`LinuxContainerResources`): what the containers have, and what
/// the pod takes beside that (`overhead` of its runtime class).
const OF_CONTAINERS: &str = "io.kubernetes.cri-o.PodLinuxResources";
const OVERHEAD: &str = "io.kubernetes.cri-o.PodLinuxOverhead";
/// Memory for a node's kernel beside that of its containers, where no engine tells of an overhead.
const KERNEL_BYTES: i64 = 128 << 20;

/// Limits in Kubernetes' runtime interface. None is what is missing, or not positive.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    #[serde(rename = "cpu_quota")]
    quota_us: i64,
    #[serde(rename = "cpu_period")]
    period_us: i64,
    #[serde(rename = "memory_limit_in_bytes")]
    memory_bytes: i64,
}

/// What the node of a pod needs, if this is the configuration of its sandbox, and its containers are limited.
pub(super) fn of(config: &Config) -> Resources {
    let of_containers = by_cri_o(config, OF_CONTAINERS).unwrap_or_else(|| by_containerd(config));
    let overhead = by_cri_o(config, OVERHEAD).map(|told| told.memory_bytes);
    let overhead = overhead.filter(|&bytes| bytes > 0).unwrap_or(KERNEL_BYTES);
    let limit = Some(of_containers.memory_bytes).filter(|&bytes| bytes > 0);
    Resources {
        memory: MemoryLimit {
            limit: limit.map(|bytes| bytes.saturating_add(overhead)),
        },
        cpu: CpuLimit {
            quota: Some(of_containers.quota_us).filter(|&quota| quota > 0),
            period: u64::try_from(of_containers.period_us).ok(),
        },
        pids: PidsLimit::default(),
    }
}

fn by_cri_o(config: &Config, key: &str) -> Option<Told> {
    serde_json::from_str(config.annotations.get(key)?).ok()
}

fn by_containerd(config: &Config) -> Told {
    let number = |key| {
        let text = config.annotations.get(key);
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    Told {
        quota_us: number(QUOTA_US),
        period_us: number(PERIOD_US),
        memory_bytes: number(MEMORY_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Quota, period and memory in MiB.
    fn limits(annotations: Value) -> (Option<i64>, Option<u64>, Option<i64>) {
        let config = serde_json::from_value(json!({"annotations": annotations})).unwrap();
        let found = of(&config);
        let memory = found.memory.limit.map(|bytes| bytes >> 20);
        (found.cpu.quota, found.cpu.period, memory)
    }

    #[test]
    fn containerd_tells_numbers() {
        let told =
            json!({QUOTA_US: "150000", PERIOD_US: "100000", MEMORY_BYTES: (192 << 20).to_string()});
        assert_eq!(limits(told), (Some(150_000), Some(100_000), Some(320)));
    }

    #[test]
    fn cri_o_tells_objects() {
        let of_containers = json!({"cpu_quota": 7, "cpu_period": 9, "memory_limit_in_bytes": 64 << 20, "cpu_shares": 2});
        let told = json!({OF_CONTAINERS: of_containers.to_string()});
        assert_eq!(limits(told.clone()), (Some(7), Some(9), Some(192)));
        let mut more = told;
        more[OVERHEAD] = json!({"memory_limit_in_bytes": 32 << 20})
            .to_string()
            .into();
        assert_eq!(limits(more), (Some(7), Some(9), Some(96)));
    }

    #[test]
    fn without_limits_there_are_none() {
        let zero = json!({QUOTA_US: "0", MEMORY_BYTES: "0"});
        let less = json!({QUOTA_US: "-1", MEMORY_BYTES: "-1"});
        let malformed =
            json!({QUOTA_US: "x", MEMORY_BYTES: "1e9", OF_CONTAINERS: "[]", OVERHEAD: "{"});
        for told in [json!({}), zero, less, malformed] {
            let (quota, _, memory) = limits(told.clone());
            assert_eq!((quota, memory), (None, None), "{told}");
        }
        let most = json!({MEMORY_BYTES: i64::MAX.to_string()});
        assert_eq!(limits(most).2, Some(i64::MAX >> 20));
    }
}
