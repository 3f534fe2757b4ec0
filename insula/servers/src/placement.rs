//! Which core suits a server, by what a node's cores have to do.
//!
//! Two things speak for a core. A server that shares a busy core with others waits for them: it goes where others do
//! less. And a request that comes from another core costs an interrupt: a server with little to do goes to a core that has
//! room for it and more to do otherwise, where its clients are likely to be.
//!
//! A server moves only if that core is better by [`GAIN`], so that two of them do not give way to each other for ever.

/// Share of a core from which it is busy, and to which one has room for another server.
const BUSY: f64 = 0.8;
const ROOM: f64 = 0.6;
/// By how much less others must do on a core, and how much more where its clients are.
const GAIN: f64 = 0.2;
const MORE: f64 = 0.02;
/// Share of a core up to which a server is not used.
const UNUSED: f64 = 0.001;
/// Share of a server's requests from which most come from another core.
const MOST: f64 = 0.5;

/// What a node's cores have to do, as shares of a core's time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// By core, all that runs there.
    pub(crate) cores: Vec<f64>,
    /// Servers that may be moved.
    pub(crate) servers: Vec<ServerLoad>,
}

/// What a server has to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServerLoad {
    pub(crate) name: String,
    /// The core on which it is; none if it may be on several.
    pub(crate) core: Option<usize>,
    /// Cores on which it may be put.
    pub(crate) allowed: Vec<usize>,
    /// Its share of a core's time.
    pub(crate) busy: f64,
    /// Share of its requests that come from another core.
    pub(crate) crossed: f64,
}

/// A server that is to be put on another core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) server: String,
    pub(crate) core: usize,
}

impl Load {
    /// The move that helps most; none if all are where they should be.
    pub(crate) fn choose(&self) -> Option<Choice> {
        let first = self.first_core();
        first
            .or_else(|| self.less_crowded_core())
            .or_else(|| self.clients_core())
    }

    /// The least busy core for a server that is on none yet.
    fn first_core(&self) -> Option<Choice> {
        let server = self.servers.iter().find(|one| one.core.is_none())?;
        let best = self.best_core(server, |core| -self.cores[core])?;
        Some(server.goes_to(best))
    }

    /// A core on which others do less, for a server on a busy one.
    fn less_crowded_core(&self) -> Option<Choice> {
        let choices = self.servers.iter().filter_map(|server| {
            let core = server.core?;
            let others = self.others(server, core)?;
            let best = self.best_core(server, |core| -self.cores[core])?;
            let gain = others - self.cores[best];
            let helps = self.cores[core] >= BUSY && server.busy > UNUSED && gain >= GAIN;
            helps.then(|| (gain, server.goes_to(best)))
        });
        let best = choices.max_by(|(one, _), (other, _)| one.total_cmp(other));
        best.map(|(_, choice)| choice)
    }

    /// The core that has more to do and room enough, for a server most of whose requests come from another.
    fn clients_core(&self) -> Option<Choice> {
        self.servers.iter().find_map(|server| {
            let core = server.core?;
            let others = self.others(server, core)?;
            let best = self.best_core(server, |core| match self.cores[core] + server.busy {
                all if all <= ROOM => self.cores[core],
                _ => f64::NEG_INFINITY,
            })?;
            let has_room = self.cores[best] + server.busy <= ROOM;
            let is_busier = self.cores[best] >= others + MORE;
            (server.crossed > MOST && has_room && is_busier).then(|| server.goes_to(best))
        })
    }

    /// What others do on a server's core.
    fn others(&self, server: &ServerLoad, core: usize) -> Option<f64> {
        Some((self.cores.get(core)? - server.busy).max(0.0))
    }

    /// The core with the highest value of those on which a server may be, but is not.
    fn best_core(&self, server: &ServerLoad, value: impl Fn(usize) -> f64) -> Option<usize> {
        let allowed = server.allowed.iter().copied();
        let others = allowed.filter(|&core| core < self.cores.len() && Some(core) != server.core);
        others.max_by(|&one, &other| value(one).total_cmp(&value(other)).then(other.cmp(&one)))
    }
}

impl ServerLoad {
    fn goes_to(&self, core: usize) -> Choice {
        Choice {
            server: self.name.clone(),
            core,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(name: &str, core: Option<usize>, busy: f64, crossed: f64) -> ServerLoad {
        ServerLoad {
            name: name.to_owned(),
            core,
            allowed: vec![0, 1, 2],
            busy,
            crossed,
        }
    }

    fn chosen(cores: &[f64], servers: &[ServerLoad]) -> Option<(String, usize)> {
        let load = Load {
            cores: cores.to_vec(),
            servers: servers.to_vec(),
        };
        load.choose().map(|choice| (choice.server, choice.core))
    }

    #[test]
    fn a_server_starts_where_least_is_done() {
        let new = server("file", None, 0.0, 0.0);
        assert_eq!(chosen(&[0.5, 0.1, 0.3], &[new]), Some(("file".into(), 1)));
    }

    #[test]
    fn a_server_leaves_a_core_that_others_need() {
        let file = |busy| server("file", Some(0), busy, 0.0);
        let goes = Some(("file".into(), 2));
        assert_eq!(chosen(&[1.0, 0.7, 0.1], &[file(0.5)]), goes);
        // Alone there, or nowhere better, or with nothing to do.
        assert_eq!(chosen(&[0.9, 0.0, 0.0], &[file(0.88)]), None);
        assert_eq!(chosen(&[1.0, 0.9, 0.4], &[file(0.5)]), None);
        assert_eq!(chosen(&[1.0, 0.0, 0.0], &[file(0.0)]), None);
        // It may not be everywhere.
        let bound = ServerLoad {
            allowed: vec![0, 1],
            ..file(0.5)
        };
        assert_eq!(chosen(&[1.0, 0.7, 0.1], &[bound]), None);
    }

    #[test]
    fn a_server_with_little_to_do_goes_to_its_clients() {
        let file = |crossed| server("file", Some(0), 0.1, crossed);
        assert_eq!(
            chosen(&[0.1, 0.4, 0.2], &[file(0.9)]),
            Some(("file".into(), 1))
        );
        assert_eq!(chosen(&[0.1, 0.4, 0.2], &[file(0.1)]), None);
        assert_eq!(chosen(&[0.1, 0.55, 0.9], &[file(0.9)]), None);
    }

    /// Programs that do not move, and servers by their core: the cores' load.
    fn load(fixed: &[f64], needs: &[f64], places: &[usize]) -> Load {
        let mut demand = fixed.to_vec();
        places
            .iter()
            .zip(needs)
            .for_each(|(&core, need)| demand[core] += need);
        let servers = places.iter().zip(needs).enumerate();
        let servers = servers.map(|(index, (&core, need))| ServerLoad {
            // A core that is asked for more than it has gives each less.
            busy: need / demand[core].max(1.0),
            crossed: 1.0,
            allowed: (0..fixed.len()).collect(),
            core: Some(core),
            name: index.to_string(),
        });
        Load {
            servers: servers.collect(),
            cores: demand.iter().map(|all| all.min(1.0)).collect(),
        }
    }

    proptest! {
        /// Whatever stays the same, they come to rest.
        #[test]
        fn servers_come_to_rest(
            fixed in prop::collection::vec(0.0..1.5_f64, 1..5),
            needs in prop::collection::vec(0.0..1.0_f64, 1..5),
            first in any::<usize>(),
        ) {
            let mut places: Vec<_> = (0..needs.len()).map(|at| (first / 7 + at) % fixed.len()).collect();
            for _ in 0..50 {
                let Some(choice) = load(&fixed, &needs, &places).choose() else {
                    return Ok(());
                };
                let index: usize = choice.server.parse().unwrap();
                prop_assert!(choice.core < fixed.len() && places[index] != choice.core);
                places[index] = choice.core;
            }
            prop_assert!(false, "they still move: {places:?}");
        }
    }
}
