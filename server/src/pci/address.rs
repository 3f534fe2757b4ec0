//! Addresses of functions, as `lspci -D` prints them.

use std::fmt;
use std::str::FromStr;

/// Address of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// Segment, bus, device and function, of 16, 8, 5 and 3 bits: as the kernel has it.
    number: u32,
}

/// A text is no address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address of a PCI function, such as 0000:01:00.0")]
pub struct AddressError(String);

impl PciAddress {
    /// Returns the address of a number of the kernel's.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self { number }
    }

    /// Returns the number by which the kernel knows it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        let (segment, bus) = (number >> 16, number >> 8 & 0xff);
        let (device, function) = (number >> 3 & 0x1f, number & 7);
        write!(formatter, "{segment:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| AddressError(text.to_owned()))
    }
}

/// Reads an address; without a segment it is in segment 0.
fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (segment, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let part = |text: &str, bits: u32| {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok()?;
        (is_digits && number >> bits == 0).then_some(number)
    };
    let number =
        part(segment, 16)? << 16 | part(bus, 8)? << 8 | part(device, 5)? << 3 | part(function, 3)?;
    Some(PciAddress { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let address: PciAddress = "00a0:1f:1e.7".parse().unwrap();
        assert_eq!(address.number(), 0x00a0_1ff7);
        assert_eq!(address.to_string(), "00a0:1f:1e.7");
        let short: PciAddress = "01:00.0".parse().unwrap();
        assert_eq!(short.to_string(), "0000:01:00.0");
        for bad in [
            "",
            "1",
            "01:00",
            "01:20.0",
            "01:00.8",
            "100:00.0",
            "1:0:0:0.0",
            "+1:00.0",
            "10000:01:00.0",
        ] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }
}
