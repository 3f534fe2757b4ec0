//! The tables of kallsyms, as scripts/kallsyms.c of the kernel writes them.

/// Order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Up to Linux 6.1: addresses first.
    Old,
    /// The same with `seqs_of_names`: Linux 6.2, 6.3 and later releases of 6.1.
    OldWithSeqs,
    /// Since Linux 6.4: addresses last.
    New,
    /// Since Linux 7.0: each address relative to its own place, and tables closer together.
    OwnPlace,
}

pub const ORDERS: [Order; 4] = [Order::Old, Order::OldWithSeqs, Order::New, Order::OwnPlace];

/// A code with an expansion of more than one character.
const LONG_TOKEN: (u8, &str) = (1, "printk_rb_");

/// The tables for `symbols` (address, kind, name), at the address `place`. Addresses below 2 GiB
/// are those of per-CPU variables.
pub fn tables(
    order: Order,
    place: u64,
    relative_base: u64,
    symbols: &[(u64, char, String)],
) -> Vec<u8> {
    let (names, markers) = names(symbols);
    let (token_table, token_index) = tokens();
    let count = (symbols.len() as u32).to_le_bytes().to_vec();
    // Bytes as in a real table: without zeros.
    let seqs = vec![0x5a; 3 * symbols.len()];
    let base = relative_base.to_le_bytes().to_vec();
    let offsets: Vec<u8> = symbols
        .iter()
        .flat_map(|symbol| offset(relative_base, symbol.0).to_le_bytes())
        .collect();
    match order {
        Order::Old => {
            let last = [names, markers, token_table, token_index];
            aligned([vec![offsets, base, count], last.into()].concat(), 8)
        }
        Order::OldWithSeqs => {
            let last = [names, markers, seqs, token_table, token_index];
            aligned([vec![offsets, base, count], last.into()].concat(), 8)
        }
        Order::New => {
            let last = [offsets, base, seqs];
            let first = vec![count, names, markers, token_table, token_index];
            aligned([first, last.into()].concat(), 8)
        }
        Order::OwnPlace => {
            let mut tables = aligned(vec![count, names, markers, token_table, token_index], 4);
            for (address, _, _) in symbols {
                let here = place + tables.len() as u64;
                tables.extend((address.wrapping_sub(here) as i32).to_le_bytes());
            }
            tables.extend(seqs);
            tables
        }
    }
}

/// The tables one after the other.
fn aligned(tables: Vec<Vec<u8>>, alignment: usize) -> Vec<u8> {
    tables.into_iter().fold(Vec::new(), |mut all, table| {
        all.extend(table);
        all.resize(all.len().next_multiple_of(alignment), 0);
        all
    })
}

fn offset(relative_base: u64, address: u64) -> i32 {
    if address < 1 << 31 {
        address as i32
    } else {
        relative_base.wrapping_sub(1).wrapping_sub(address) as i32
    }
}

fn names(symbols: &[(u64, char, String)]) -> (Vec<u8>, Vec<u8>) {
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (index, (_, kind, name)) in symbols.iter().enumerate() {
        if index % 256 == 0 {
            markers.extend((names.len() as u32).to_le_bytes());
        }
        let text = format!("{kind}{name}").replace(LONG_TOKEN.1, "\x01");
        match text.len() {
            short @ ..=0x7f => names.push(short as u8),
            long => names.extend([(long & 0x7f) as u8 | 0x80, (long >> 7) as u8]),
        }
        names.extend(text.bytes());
    }
    (names, markers)
}

fn tokens() -> (Vec<u8>, Vec<u8>) {
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for code in 0..=255_u8 {
        index.extend((table.len() as u16).to_le_bytes());
        if code == LONG_TOKEN.0 {
            table.extend(LONG_TOKEN.1.bytes());
        } else if code.is_ascii_graphic() {
            table.push(code);
        }
        table.push(0);
    }
    (table, index)
}
