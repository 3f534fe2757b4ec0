use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use insula_abi::virtio::{self, BUS, Features, Header, MESSAGE_MAX, RESPONSE, Status, Vqueue};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::bus::Bus;
use super::device::{Backend, Identity, StartError, Virtqueue};
use super::drain::Drain;

const FEATURE: u64 = 1 << 5;
const VERSION_1: u64 = 1 << 32;

/// A call of the backend.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Start(u64, Vec<Virtqueue>),
    Stop,
}

#[derive(Clone, Default)]
struct Recorder {
    calls: Arc<Mutex<Vec<Call>>>,
    config: Vec<u8>,
    fails: Arc<Mutex<Option<StartError>>>,
}

impl Recorder {
    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Recorder {
    fn fail(&self, with: Option<StartError>) {
        *self.fails.lock().unwrap() = with;
    }
}

impl Backend for Recorder {
    fn identity(&self) -> Identity {
        Identity {
            device_id: 19,
            features: FEATURE,
            queue_sizes: &[64, 128],
        }
    }

    fn name(&self) -> String {
        "recorder".into()
    }

    fn config(&self) -> Vec<u8> {
        self.config.clone()
    }

    fn write_config(&mut self, offset: usize, bytes: &[u8]) {
        self.config[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        match &*self.fails.lock().unwrap() {
            None => {}
            Some(StartError::Driver(why)) => return Err(StartError::Driver(why.clone())),
            Some(StartError::Backend(why)) => return Err(StartError::Backend(why.clone())),
        }
        self.calls
            .lock()
            .unwrap()
            .push(Call::Start(features, queues.to_vec()));
        Ok(())
    }

    /// It knows which requests its driver has only while it is started.
    fn drain(&self, is_started: bool) -> Result<Option<Drain>, StartError> {
        match is_started {
            true => Ok(None),
            false => Err(StartError::Backend("not known".into())),
        }
    }

    fn stop(&mut self) {
        self.calls.lock().unwrap().push(Call::Stop);
    }
}

/// A bus, and the driver of its device 0.
struct Driver(Bus);

impl Driver {
    fn of(recorder: &Recorder) -> Self {
        Self(Bus::new(vec![Box::new(recorder.clone())]).unwrap())
    }

    /// The body of the answer.
    fn request(&mut self, id: u8, body: impl IntoBytes + Immutable) -> Vec<u8> {
        self.request_bytes(id, body.as_bytes())
    }

    fn request_bytes(&mut self, id: u8, body: &[u8]) -> Vec<u8> {
        let message = message(0, id, 0, body);
        let answer = self.0.answer(&message).unwrap();
        let (header, body) = Header::read_from_prefix(&answer).unwrap();
        assert_eq!((header.kind, header.id, header.token), (RESPONSE, id, 7));
        assert_eq!(usize::from(header.size), answer.len());
        body.to_vec()
    }

    fn get<T: FromBytes>(&mut self, id: u8, body: impl IntoBytes + Immutable) -> T {
        T::read_from_bytes(&self.request(id, body)).unwrap()
    }

    fn set_status(&mut self, status: u32) -> u32 {
        self.get::<Status>(virtio::device::SET_STATUS, Status { status })
            .status
    }

    fn accept_features(&mut self, bits: u64) {
        let features = Features {
            blocks: virtio::Blocks { first: 0, count: 2 },
            words: [bits as u32, (bits >> 32) as u32],
        };
        self.request(virtio::device::SET_FEATURES, features);
    }

    fn set_up_queue(&mut self, index: u32, size: u32) {
        let queue = Vqueue {
            index,
            size,
            descriptors: 0x1000,
            driver: 0x2000,
            device: 0x3000,
            ..Vqueue::default()
        };
        self.request(virtio::device::SET_VQUEUE, queue);
    }

    /// Initializes device 0 as a driver does.
    fn bring_up(&mut self) -> u32 {
        for status in [0, 1, 3] {
            assert_eq!(self.set_status(status), status);
        }
        self.accept_features(FEATURE | VERSION_1);
        assert_eq!(self.set_status(11), 11);
        self.set_up_queue(0, 64);
        self.set_up_queue(1, 32);
        self.set_status(15)
    }
}

fn message(kind: u8, id: u8, device: u16, body: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        id,
        device,
        token: 7,
        size: (size_of::<Header>() + body.len()) as u16,
    };
    [header.as_bytes(), body].concat()
}

fn queue(index: u32, size: u16) -> Virtqueue {
    Virtqueue {
        index,
        size,
        descriptors: 0x1000,
        driver: 0x2000,
        device: 0x3000,
        event: index,
    }
}

#[test]
fn device_works_once_its_driver_is_ready_and_no_more_after_a_reset() {
    let recorder = Recorder::default();
    let mut driver = Driver::of(&recorder);
    assert_eq!(driver.bring_up(), 15);
    let queues = vec![queue(0, 64), queue(1, 32)];
    assert_eq!(
        recorder.calls(),
        [Call::Start(FEATURE | VERSION_1, queues.clone())]
    );
    assert_eq!(driver.set_status(0), 0);
    assert_eq!(recorder.calls(), [Call::Stop]);
    driver.bring_up();
    assert_eq!(
        recorder.calls(),
        [Call::Start(FEATURE | VERSION_1, queues)],
        "it can be used again"
    );
}

#[test]
fn features_that_were_not_offered_are_not_agreed_to() {
    for bits in [VERSION_1 | 1, FEATURE, 0] {
        let recorder = Recorder::default();
        let mut driver = Driver::of(&recorder);
        driver.set_status(3);
        driver.accept_features(bits);
        assert_eq!(driver.set_status(11), 3, "{bits:#x}");
        assert_eq!(driver.set_status(15), 3, "nor does it work without");
        assert_eq!(recorder.calls(), []);
    }
}

#[test]
fn queue_of_an_invalid_size_is_ignored() {
    let recorder = Recorder::default();
    let mut driver = Driver::of(&recorder);
    driver.accept_features(VERSION_1);
    for size in [0, 3, 128, 1 << 16, u32::MAX] {
        driver.set_up_queue(0, size);
    }
    driver.set_status(15);
    assert_eq!(recorder.calls(), [Call::Start(VERSION_1, vec![])]);
}

#[test]
fn device_that_does_not_start_needs_a_reset() {
    let recorder = Recorder::default();
    recorder.fail(Some(StartError::Driver("no queue".into())));
    let mut driver = Driver::of(&recorder);
    assert_eq!(driver.bring_up(), 15 | 64);
    assert_eq!(
        driver.0.take_status_changes(),
        [("recorder".into(), Some("no queue".into()))]
    );
    assert!(!driver.0.needs_service(), "only its driver can reset it");
    assert_eq!(driver.set_status(0), 0);
    assert_eq!(recorder.calls(), [], "it was never started");
}

/// A failing device is reported and retried without its driver, and does not affect others.
#[test]
fn failed_start_is_retried() {
    let [failing, well] = [Recorder::default(), Recorder::default()];
    failing.fail(Some(StartError::Backend("no program".into())));
    let backends: [Box<dyn Backend>; 2] = [Box::new(failing.clone()), Box::new(well.clone())];
    let mut driver = Driver(Bus::new(backends.into()).unwrap());
    assert_eq!(driver.bring_up(), 15, "its driver sees a slow device");
    let change = |why: Option<&str>| [("recorder".to_owned(), why.map(str::to_owned))];
    assert_eq!(driver.0.take_status_changes(), change(Some("no program")));
    let (now, later) = (Instant::now(), Duration::from_secs(60));
    driver.0.service(now);
    assert_eq!(driver.0.take_status_changes(), [], "not so soon");
    driver.0.service(now + later);
    assert_eq!(driver.0.take_status_changes(), change(Some("no program")));
    let other = message(0, virtio::device::GET_DEVICE_INFO, 1, &[]);
    driver.0.answer(&other).expect("the other one answers");
    failing.fail(None);
    driver.0.service(now + later * 2);
    assert_eq!(driver.0.take_status_changes(), change(None));
    assert!(matches!(failing.calls()[..], [Call::Start(..)]));
    assert!(!driver.0.needs_service());
}

#[test]
fn failed_start_is_not_retried_after_a_reset() {
    let recorder = Recorder::default();
    recorder.fail(Some(StartError::Backend("no program".into())));
    let mut driver = Driver::of(&recorder);
    driver.bring_up();
    driver.set_status(0);
    recorder.fail(None);
    driver.0.service(Instant::now() + Duration::from_secs(60));
    assert_eq!(recorder.calls(), []);
    assert!(!driver.0.needs_service());
}

/// A device that is not started may have requests nevertheless, and one that fails has.
#[test]
fn only_started_devices_are_drained() {
    let recorder = Recorder::default();
    let mut driver = Driver::of(&recorder);
    let drained = |driver: &Driver| driver.0.drain().map(|drains| drains.len());
    assert!(drained(&driver).is_err());
    driver.bring_up();
    assert_eq!(drained(&driver).unwrap(), 0);
    driver.set_status(0);
    assert!(drained(&driver).is_err());
    recorder.fail(Some(StartError::Backend("no program".into())));
    driver.bring_up();
    let refused = drained(&driver).unwrap_err().to_string();
    assert!(refused.contains("recorder does not work"), "{refused}");
}

#[test]
fn driver_is_notified_of_a_configuration_change() {
    let config = Arc::new(Mutex::new(vec![0; 8]));
    struct Growing(Arc<Mutex<Vec<u8>>>);
    impl Backend for Growing {
        fn identity(&self) -> Identity {
            Recorder::default().identity()
        }

        fn name(&self) -> String {
            "growing".into()
        }

        fn config(&self) -> Vec<u8> {
            self.0.lock().unwrap().clone()
        }

        fn start(&mut self, _: u64, _: &[Virtqueue]) -> Result<(), StartError> {
            Ok(())
        }

        fn stop(&mut self) {}
    }
    let growing = Box::new(Growing(Arc::clone(&config)));
    let mut driver = Driver(Bus::new(vec![growing]).unwrap());
    assert!(driver.0.service(Instant::now()).is_empty());
    config.lock().unwrap()[0] = 7;
    let sent = driver.0.service(Instant::now());
    let (header, _) = Header::read_from_prefix(&sent[0]).unwrap();
    assert_eq!((sent.len(), header.kind, header.device), (1, 0, 0));
    assert_eq!(header.id, virtio::device::EVENT_CONFIG);
    assert_eq!(usize::from(header.size), sent[0].len());
    let range = virtio::ConfigRange { offset: 0, size: 1 };
    let answer = driver.request(virtio::device::GET_CONFIG, range);
    let (head, bytes) = virtio::Config::read_from_prefix(&answer).unwrap();
    assert_eq!((head.generation, bytes), (1, &[7][..]));
    assert!(driver.0.service(Instant::now()).is_empty());
}

#[test]
fn reset_of_a_queue_stops_the_device() {
    let recorder = Recorder::default();
    let mut driver = Driver::of(&recorder);
    driver.bring_up();
    recorder.calls();
    for index in 0..2 {
        driver.request(virtio::device::RESET_VQUEUE, virtio::VqueueIndex { index });
    }
    assert_eq!(recorder.calls(), [Call::Stop], "once");
}

#[test]
fn configuration_is_read_and_written_within_its_bounds() {
    let recorder = Recorder {
        config: (0..16).collect(),
        ..Recorder::default()
    };
    let mut driver = Driver::of(&recorder);
    let read = |driver: &mut Driver, offset, size| {
        let range = virtio::ConfigRange { offset, size };
        let answer = driver.request(virtio::device::GET_CONFIG, range);
        let (head, bytes) = virtio::Config::read_from_prefix(&answer).unwrap();
        assert_eq!(head.size as usize, bytes.len());
        bytes.to_vec()
    };
    assert_eq!(read(&mut driver, 2, 3), [2, 3, 4]);
    for (offset, size) in [(14, 3), (17, 0), (u32::MAX, 2), (0, u32::MAX)] {
        assert!(read(&mut driver, offset, size).is_empty());
    }
    let write = |driver: &mut Driver, offset, bytes: [u8; 2]| {
        let head = virtio::Config {
            generation: 0,
            offset,
            size: 2,
        };
        let body = [head.as_bytes(), bytes.as_bytes()].concat();
        driver.request_bytes(virtio::device::SET_CONFIG, &body);
    };
    write(&mut driver, 14, [0xaa, 0xbb]);
    write(&mut driver, 15, [1, 1]);
    write(&mut driver, u32::MAX, [1, 1]);
    assert_eq!(read(&mut driver, 13, 3), [13, 0xaa, 0xbb]);
}

#[test]
fn devices_are_listed_and_have_events_of_their_own() {
    let recorder = Recorder::default();
    let backends = (0..3).map(|_| Box::new(recorder.clone()) as Box<dyn Backend>);
    let mut bus = Bus::new(backends.collect()).unwrap();
    let requested = virtio::DeviceRange { first: 0, count: 8 };
    let answer = bus
        .answer(&message(
            BUS,
            virtio::bus::GET_DEVICES,
            0,
            requested.as_bytes(),
        ))
        .unwrap();
    assert_eq!(answer[size_of::<Header>()..], [0, 0, 8, 0, 0, 0, 0b111]);
    let event = |bus: &mut Bus, device| {
        let requested = virtio::VqueueIndex { index: 1 };
        let id = virtio::device::GET_VQUEUE;
        let answer = bus.answer(&message(0, id, device, requested.as_bytes()));
        let (_, body) = Header::read_from_prefix(&answer.unwrap())
            .map(|(header, body)| (header, body.to_vec()))
            .unwrap();
        Vqueue::read_from_bytes(&body).unwrap().event
    };
    assert_eq!([0, 1, 2].map(|device| event(&mut bus, device)), [1, 3, 5]);
}

#[test]
fn more_queues_than_there_are_events_are_refused() {
    let recorder = Recorder::default();
    let backends = (0..32).map(|_| Box::new(recorder.clone()) as Box<dyn Backend>);
    assert!(Bus::new(backends.collect()).is_err());
}

proptest! {
    /// No message of a node makes the base panic or exceed the size of a response.
    #[test]
    fn any_bytes_are_survived(messages in prop::collection::vec(hostile(), 1..40)) {
        let recorder = Recorder { config: vec![0; 300], ..Recorder::default() };
        let mut bus = Bus::new(vec![Box::new(recorder.clone())]).unwrap();
        for message in messages {
            if let Ok(answer) = bus.answer(&message) {
                prop_assert!(answer.len() <= MESSAGE_MAX);
            }
        }
        bus.disconnect();
        let calls = recorder.calls();
        let (starts, stops): (Vec<_>, Vec<_>) =
            calls.iter().partition(|call| matches!(call, Call::Start(..)));
        prop_assert_eq!(starts.len(), stops.len(), "each start has its stop");
    }
}

/// Arbitrary bytes, many of them with a valid header.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..600);
    let small = prop_oneof![0_u32..16, any::<u32>()].prop_map(|word| word.to_le_bytes());
    let bodies = prop::collection::vec(small, 0..12).prop_map(|words| words.concat());
    let sensible = (0_u8..3, 0_u8..14, 0_u16..2, bodies)
        .prop_map(|(kind, id, device, body)| message(kind, id, device, &body));
    prop_oneof![1 => noise, 4 => sensible]
}
