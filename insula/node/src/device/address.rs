//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

use insula_abi as abi;
use insula_base::serde_as_text;

/// The text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a PCI address: expected the form of lspci -D, such as 0000:01:00.0")]
pub struct AddressError(String);

/// Address of a PCI function, as Linux writes it: `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment group, which Linux calls a domain.
    pub segment: u16,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl PciAddress {
    /// The address as `struct insula_device`.
    #[must_use]
    pub fn to_abi(self) -> abi::Device {
        abi::Device {
            segment: self.segment.into(),
            bus: self.bus.into(),
            function: u32::from(self.device) << 3 | u32::from(self.function),
            flags: 0,
        }
    }

    /// The address as the module gives it.
    #[must_use]
    pub fn from_abi(device: &abi::Device) -> Self {
        // The module only has addresses in range.
        Self {
            segment: device.segment as u16,
            bus: device.bus as u8,
            device: (device.function >> 3) as u8 & 0x1f,
            function: device.function as u8 & 7,
        }
    }

    /// Common prefix of the addresses on its bus: `0000:01:`.
    pub(crate) fn bus_prefix(self) -> String {
        format!("{:04x}:{:02x}:", self.segment, self.bus)
    }
}

impl FromStr for PciAddress {
    type Err = AddressError;

    /// Parses an address with or without the segment, as lspci does.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).ok_or_else(|| AddressError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let hex = |text: &str, digits: usize| {
        let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u16::from_str_radix(text, 16).ok().filter(|_| plain)
    };
    let (segment, rest) = match text.matches(':').count() {
        1 => (0, text),
        _ => {
            let (segment, rest) = text.split_once(':')?;
            (hex(segment, 4)?, rest)
        }
    };
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let address = PciAddress {
        segment,
        bus: u8::try_from(hex(bus, 2)?).ok()?,
        device: u8::try_from(hex(device, 2)?).ok()?,
        function: u8::try_from(hex(function, 1)?).ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segment,
            bus,
            device,
            function,
        } = self;
        f.pad(&format!("{segment:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

serde_as_text!(
    PciAddress,
    "^([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\\.[0-7]$"
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_segment_may_be_left_out() {
        let address: PciAddress = "01:00.0".parse().unwrap();
        assert_eq!(address.to_string(), "0000:01:00.0");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in [
            "",
            "1:0.0",
            "0000:01:00",
            "01:20.0",
            "01:00.8",
            "0:01:00.0",
            "01:00.+0",
            "nvme0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_and_abi_round_trip(
            segment: u16, bus: u8, device in 0_u8..32, function in 0_u8..8,
        ) {
            let address = PciAddress { segment, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
            prop_assert_eq!(PciAddress::from_abi(&address.to_abi()), address);
        }
    }
}
