//! The offset of an open file description, of which this kernel and the file's server take turns.
//!
//! The server has it, so that of several calls at once each begins where another one has ended. What this kernel reads
//! by itself it tells with the next request that needs the offset. All requests that are under way together tell the
//! same, with a number, by which the server takes over only the first of them, whichever arrives first.

/// What a request tells a server: an offset, and its number. The server takes it over if the number is higher than the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldOffset {
    /// Bytes.
    pub offset: u64,
    /// 0 for none.
    pub number: u64,
}

/// The offset of a description.
#[derive(Debug)]
pub struct FileOffset {
    /// If it is known: no request is under way.
    known: Option<u64>,
    /// The server has not been told of it.
    is_new: bool,
    told: ToldOffset,
    /// Requests that are under way.
    under_way: u32,
    /// Several were at once.
    were_several: bool,
}

impl Default for FileOffset {
    /// That of a file that was just opened.
    fn default() -> Self {
        Self {
            known: Some(0),
            is_new: false,
            told: ToldOffset::default(),
            under_way: 0,
            were_several: false,
        }
    }
}

impl FileOffset {
    /// Returns it, if it is known.
    #[must_use]
    pub fn known(&self) -> Option<u64> {
        self.known
    }

    /// Sets one that is known.
    pub fn set(&mut self, offset: u64) {
        self.is_new |= self.known != Some(offset);
        self.known = Some(offset);
    }

    /// Begins a request. Returns what it tells.
    pub fn begin(&mut self) -> ToldOffset {
        if let Some(offset) = self.known.take()
            && core::mem::take(&mut self.is_new)
        {
            self.told = ToldOffset {
                offset,
                number: self.told.number + 1,
            };
        }
        self.were_several |= self.under_way > 0;
        self.under_way += 1;
        self.told
    }

    /// Ends a request, whose reply says what the offset is now; `None` if there is no such reply.
    pub fn end(&mut self, offset: Option<u64>) {
        self.under_way -= 1;
        if self.under_way == 0 {
            // Of several replies it is not known which was made last.
            self.known = offset.filter(|_| !self.were_several);
            self.were_several = false;
        } else if offset.is_none() {
            self.were_several = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A server, as far as it has to do with offsets.
    #[derive(Default)]
    struct Server {
        offset: u64,
        number: u64,
    }

    impl Server {
        /// Reads so many bytes.
        fn read(&mut self, told: ToldOffset, bytes: u64) -> u64 {
            if told.number > self.number {
                (self.offset, self.number) = (told.offset, told.number);
            }
            self.offset += bytes;
            self.offset
        }
    }

    #[test]
    fn the_server_hears_what_it_has_not_seen() {
        let mut offset = FileOffset::default();
        assert_eq!(offset.begin().number, 0);
        assert_eq!(offset.known(), None);
        offset.end(Some(10));
        assert_eq!(offset.known(), Some(10));
        offset.set(15);
        let told = ToldOffset {
            offset: 15,
            number: 1,
        };
        assert_eq!(offset.begin(), told);
        assert_eq!(offset.begin(), told);
        offset.end(Some(20));
        offset.end(Some(30));
        assert_eq!(offset.known(), None);
        assert_eq!(offset.begin(), told);
        offset.end(Some(40));
        assert_eq!(offset.known(), Some(40));
    }

    #[test]
    fn what_a_request_without_reply_has_done_is_not_known() {
        let mut offset = FileOffset::default();
        offset.begin();
        offset.begin();
        offset.end(None);
        offset.end(Some(7));
        assert_eq!(offset.known(), None);
        offset.begin();
        offset.end(Some(8));
        assert_eq!(offset.known(), Some(8));
    }

    /// What happens next.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The kernel reads by itself, if it can; else it asks.
        Read(u8),
        /// It asks.
        Ask(u8),
        /// One of the requests under way arrives.
        Arrive(prop::sample::Index),
        /// One of the replies does.
        Reply(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<u8>().prop_map(Step::Read),
            any::<u8>().prop_map(Step::Ask),
            any::<prop::sample::Index>().prop_map(Step::Arrive),
            any::<prop::sample::Index>().prop_map(Step::Reply),
        ]
    }

    proptest! {
        /// Every byte is read once, in whatever order requests and replies arrive.
        #[test]
        fn no_byte_is_read_twice(steps in prop::collection::vec(step(), 0..60)) {
            let (mut offset, mut server) = (FileOffset::default(), Server::default());
            let (mut sent, mut replies, mut done) = (Vec::new(), Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Read(bytes) if offset.known().is_some() => {
                        prop_assert_eq!(offset.known(), Some(done));
                        done += u64::from(bytes);
                        offset.set(done);
                    }
                    Step::Read(bytes) | Step::Ask(bytes) => {
                        sent.push((offset.begin(), u64::from(bytes)));
                    }
                    Step::Arrive(index) if !sent.is_empty() => {
                        let (told, bytes) = sent.swap_remove(index.index(sent.len()));
                        done += bytes;
                        replies.push(server.read(told, bytes));
                        prop_assert_eq!(server.offset, done);
                    }
                    Step::Reply(index) if !replies.is_empty() => {
                        offset.end(Some(replies.swap_remove(index.index(replies.len()))));
                    }
                    Step::Arrive(_) | Step::Reply(_) => {}
                }
            }
        }
    }
}
